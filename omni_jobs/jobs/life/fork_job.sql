-- copy_stage_runs: makes stage runs of a fork out of those of the same name of the job that it is forked from.
UPDATE stage_runs
SET state = 'succeeded', reason = NULL, result = origin.result, payload_ref = origin.payload_ref,
    payload_inline = origin.payload_inline, payload_bytes = origin.payload_bytes, payload_gone = origin.payload_gone,
    taken_from = coalesce(origin.taken_from, origin.job_id), finish_reason = origin.finish_reason, warnings = origin.warnings, finished_at = {now}
FROM stage_runs AS origin
WHERE stage_runs.job_id = :job AND stage_runs.stage {names} AND origin.job_id = :origin
    AND origin.stage = stage_runs.stage
RETURNING stage_runs.id

-- drop_payloads: lets go of payloads that these stage runs of a fork would hand on.
UPDATE stage_runs SET payload_ref = NULL, payload_inline = NULL, payload_gone = true
WHERE job_id = :job AND stage {names} AND (payload_ref IS NOT NULL OR payload_inline IS NOT NULL)
RETURNING id

-- copy_artifacts: gives the fork the artifacts of these stages.
INSERT INTO artifacts (job_id, name, stage_run_id, media_type, ref, created_at)
SELECT :job, made.name, run.id, made.media_type, made.ref, {now}
FROM artifacts AS made
JOIN stage_runs AS origin ON origin.id = made.stage_run_id
JOIN stage_runs AS run ON run.job_id = :job AND run.stage = origin.stage
WHERE made.job_id = :origin AND origin.stage {names}
RETURNING name

-- insert_shared_objects: writes the shares of forks in objects of other jobs.
-- postgresql
INSERT INTO shared_objects (key, job_id) SELECT * FROM {rows} AS given(key text, job_id text)
RETURNING 1
-- sqlite
INSERT INTO shared_objects (key, job_id) VALUES (:key, :job_id)
