-- set_pruned: writes what is gone of jobs, and when the pruner looks again.
-- postgresql
UPDATE jobs
SET prune_at = given.prune_at, payloads_gone = given.payloads_gone, inputs_gone = given.inputs_gone,
    artifacts_gone = given.artifacts_gone
FROM {rows} AS given(job text, prune_at double precision, payloads_gone boolean, inputs_gone boolean,
                     artifacts_gone boolean)
WHERE jobs.id = given.job AND jobs.id {key_names}
RETURNING 1
-- sqlite
UPDATE jobs
SET prune_at = :prune_at, payloads_gone = :payloads_gone, inputs_gone = :inputs_gone, artifacts_gone = :artifacts_gone
WHERE id = :job
