-- The statements that run for every job, as SQLite has them. omni_jobs.database.statement reads this file.
-- A line that begins with "-- name:" names the statement below it; {name} stands for the text of an earlier one.
-- ":ids" is a JSON list. A bulk statement is run once for each row, because that is faster than one for all rows; its
-- parameters bear the names of the row's columns in its first line. "state || ''" is a guard on rows found by their
-- ids: no index serves it, so that SQLite finds them by these.

-- name: now
((julianday('now') - 2440587.5) * 86400.0)

-- name: ids
IN (SELECT value FROM json_each(:ids))

-- name: names
IN (SELECT value FROM json_each(:ids))

-- name: key_names
IN (SELECT value FROM json_each(:keys))

-- name: time
SELECT {now}


-- Claim.

-- The due stage runs of the worker's stage that were submitted with its pipeline file.
-- name: of_worker
run.pipeline = (SELECT pipeline FROM workers WHERE id = :worker)
    AND run.stage = (SELECT stage FROM workers WHERE id = :worker)
    AND run.pipeline_digest = (SELECT pipeline_digest FROM workers WHERE id = :worker)
    AND run.due <= {now}

-- What waits in the worker's line.
-- name: in_line
{of_worker} AND run.state = 'queued'

-- A suspect that no other live worker waits to run.
-- name: is_free_suspect
run.apart IS NOT NULL
    AND (run.apart = :worker
         OR NOT EXISTS (SELECT 1 FROM workers WHERE id = run.apart AND lease_until > {now}))

-- name: suspect
SELECT run.id FROM stage_runs AS run WHERE {in_line} AND {is_free_suspect} ORDER BY run.turn LIMIT 1

-- name: has_lease
EXISTS (SELECT 1 FROM workers WHERE id = :worker AND lease_until > {now})

-- name: lease_and_suspect
SELECT (SELECT lease_until > {now} FROM workers WHERE id = :worker), ({suspect})

-- name: claimed
UPDATE stage_runs
SET state = 'running', attempt = attempt + 1, owner = :worker, started_at = {now}, reason = NULL, progress = NULL

-- name: is_claimable
run.apart IS NULL AND {has_lease} AND NOT EXISTS ({suspect})

-- name: claim_next
{claimed}
WHERE id IN (
    SELECT run.id FROM stage_runs AS run
    WHERE {in_line} AND {is_claimable}
    ORDER BY run.turn, run.id
    LIMIT CAST(:at_most AS integer))
RETURNING id

-- The index of high jobs alone serves it, because the state is written as in its predicate.
-- name: claim_next_high
{claimed}
WHERE id IN (
    SELECT run.id FROM stage_runs AS run
    WHERE {of_worker} AND run.is_high AND run.state || '' = 'queued' AND {is_claimable}
    ORDER BY run.turn, run.id
    LIMIT CAST(:at_most AS integer))
RETURNING id

-- name: the_suspect
SELECT run.id FROM stage_runs AS run
WHERE run.id = CAST(:suspect AS integer) AND run.state || '' = 'queued' AND {is_free_suspect} AND {has_lease}

-- name: claim_suspect
{claimed}
WHERE id IN ({the_suspect})
RETURNING id

-- name: set_suspect_apart
UPDATE stage_runs SET apart = :worker
WHERE id IN ({the_suspect})
RETURNING id

-- name: running_of_worker
SELECT id FROM stage_runs WHERE state = 'running' AND owner = :worker

-- name: start_unless_locked
UPDATE jobs
SET state = 'in_progress', started_at = (SELECT max(run.started_at) FROM stage_runs AS run WHERE run.job_id = jobs.id)
WHERE id IN (SELECT job_id FROM stage_runs WHERE id {ids}) AND state || '' = 'queued'
RETURNING id

-- name: claimed_stage_runs
SELECT id, job_id, stage, attempt, inputs, capture, retries, failures, is_high, snapshot FROM stage_runs
WHERE id {ids}
ORDER BY turn, id

-- name: claimed_jobs
SELECT id, pipeline, request, media, seed FROM jobs WHERE id IN (SELECT job_id FROM stage_runs WHERE id {ids})

-- name: claimed_payloads
SELECT job_id, stage, payload_ref, payload_inline FROM stage_runs
WHERE job_id IN (SELECT job_id FROM stage_runs WHERE id {ids} AND inputs <> '[]') AND state || '' = 'succeeded'

-- name: note_turn
UPDATE workers SET turn = (SELECT max(turn) FROM stage_runs WHERE id {ids})
WHERE id = :worker AND coalesce(turn, -1) < (SELECT max(turn) FROM stage_runs WHERE id {ids})
RETURNING id

-- High jobs that were claimed before others do not show how far the line has got: what waits does.
-- name: turn_of_line
(SELECT min(turn) FROM (
    SELECT max(turn) AS turn FROM stage_runs WHERE id {ids}
    UNION ALL
    SELECT turn FROM (SELECT run.turn FROM stage_runs AS run WHERE {in_line} ORDER BY run.turn LIMIT 1)))

-- name: note_turn_of_line
UPDATE workers SET turn = {turn_of_line}
WHERE id = :worker AND coalesce(turn, -1) < {turn_of_line}
RETURNING id


-- Submit.

-- name: weights_and_limits
SELECT name, weight, limits FROM tenants WHERE name {names}

-- name: keep_tenants
{weights_and_limits}

-- name: lock_turns
SELECT turns.pipeline, turns.tenant,
       max(turns.high, coalesce(quota.high, 0)),
       max(turns.normal, coalesce(quota.normal, 0)),
       max(turns.low, coalesce(quota.low, 0))
FROM turns LEFT JOIN quota_turns AS quota ON quota.pipeline = turns.pipeline AND quota.tenant = turns.tenant
WHERE turns.pipeline {names} AND turns.tenant {key_names}

-- name: turns_of
SELECT pipeline, high, normal, low FROM turns WHERE tenant = :tenant AND pipeline {names}

-- name: insert_turns_unless_there
INSERT INTO turns (pipeline, tenant, high, normal, low) VALUES (:pipeline, :tenant, 0, 0, 0) ON CONFLICT DO NOTHING

-- name: set_turns
UPDATE turns SET high = :high, normal = :normal, low = :low WHERE pipeline = :pipeline AND tenant = :tenant

-- name: first_turn
SELECT turn FROM stage_runs
WHERE pipeline = :pipeline AND stage = :stage AND pipeline_digest = :digest AND state = 'queued' AND due <= {now}
ORDER BY turn LIMIT 1

-- name: claimed_turn
SELECT max(turn) FROM workers WHERE pipeline = :pipeline

-- name: highest_turn
SELECT max(turn) FROM (
    SELECT max(max(normal, low)) AS turn FROM turns WHERE pipeline = :pipeline
    UNION ALL
    SELECT max(max(normal, low)) FROM quota_turns WHERE pipeline = :pipeline)

-- name: insert_jobs_unless_there
INSERT INTO jobs (id, pipeline, pipeline_version, pipeline_digest, modalities, request, request_digest,
                  idempotency_key, media, metadata, seed, tenant, priority, cost, deadline, created_at,
                  state, retries, payloads_gone, inputs_gone, artifacts_gone)
VALUES (:id, :pipeline, :pipeline_version, :pipeline_digest, :modalities, :request, :request_digest,
        :idempotency_key, :media, :metadata, :seed, :tenant, :priority, :cost, :deadline, :created_at,
        'queued', 0, 0, 0, 0)
ON CONFLICT DO NOTHING

-- name: insert_stage_runs_unless_there
INSERT INTO stage_runs (job_id, position, pipeline, pipeline_digest, stage, queue, inputs, capture, retries,
                        queue_limit_s, is_high, state, turn, queued_at, due, queue_deadline, reason, attempt,
                        payload_gone)
VALUES (:job_id, :position, :pipeline, :pipeline_digest, :stage, :queue, :inputs, :capture, :retries,
        :queue_limit_s, :is_high, :state, :turn, :queued_at, :due, :queue_deadline, :reason, 0, 0)
ON CONFLICT DO NOTHING


-- Quota.

-- name: insert_quota_jobs_unless_there
INSERT INTO quota_jobs (job_id, tenant, turn, cost, is_let_in) VALUES (:job_id, :tenant, :turn, :cost, 0)
ON CONFLICT DO NOTHING

-- name: delete_quota_jobs
DELETE FROM quota_jobs WHERE job_id {names} RETURNING 1

-- name: lock_tenant
SELECT weight, limits FROM tenants WHERE name = :tenant

-- Older builds end a job without deleting its row.
-- name: count_let_in
SELECT count(*), max(quota.turn) FROM quota_jobs AS quota JOIN jobs AS job ON job.id = quota.job_id
WHERE quota.tenant = :tenant AND quota.is_let_in = 1 AND job.finished_at IS NULL

-- The last turns of those that were let in to a pipeline; of pipeline '', the order in which jobs are let in.
-- name: quota_turns
SELECT pipeline, high, normal, low FROM quota_turns WHERE tenant = :tenant

-- name: set_quota_turns
INSERT INTO quota_turns (pipeline, tenant, high, normal, low) VALUES (:pipeline, :tenant, :high, :normal, :low)
ON CONFLICT (pipeline, tenant) DO UPDATE SET high = excluded.high, normal = excluded.normal, low = excluded.low

-- name: let_in
UPDATE quota_jobs SET is_let_in = 1
WHERE job_id IN (
    SELECT quota.job_id FROM quota_jobs AS quota JOIN jobs AS job ON job.id = quota.job_id
    WHERE quota.tenant = :tenant AND quota.is_let_in = 0 AND job.state || '' = 'queued'
    ORDER BY quota.turn, quota.job_id
    LIMIT CAST(:at_most AS integer))
RETURNING turn, job_id, cost

-- name: stages_of_jobs
SELECT job_id, stage, pipeline, (SELECT pipeline_digest FROM jobs WHERE id = job_id),
       (SELECT priority FROM jobs WHERE id = job_id)
FROM stage_runs WHERE job_id {names}

-- name: set_turn
UPDATE stage_runs SET turn = :turn WHERE job_id = :job_id

-- name: queue_if_held
UPDATE stage_runs
SET state = 'queued', queued_at = {now}, due = {now}, queue_deadline = {now} + queue_limit_s, reason = NULL
WHERE job_id {names} AND state || '' = 'pending' AND reason = 'quota'
RETURNING queue


-- Transitions.

-- name: job_locks
SELECT id, state, ending, tenant, {now} FROM jobs

-- name: lock_jobs
{job_locks} WHERE id {names} ORDER BY id

-- name: lock_jobs_of_stage_runs
{job_locks} WHERE id IN (SELECT job_id FROM stage_runs WHERE id {ids}) ORDER BY id

-- name: stage_run_columns
SELECT id, job_id, stage, queue, inputs, state, attempt, failures, retries, owner, payload_bytes, payload_ref,
       payload_gone, reason, snapshot,
       CASE position WHEN 0 THEN (SELECT tenant FROM quota_jobs WHERE job_id = stage_runs.job_id) END
FROM stage_runs

-- name: stage_runs_of_jobs
{stage_run_columns} WHERE job_id {names}

-- name: stage_runs_of_same_jobs
{stage_run_columns} WHERE job_id IN (SELECT job_id FROM stage_runs WHERE id {ids})

-- name: is_running
id = :stage_run AND attempt = :held_attempt AND state || '' = 'running'

-- name: complete_if_running
UPDATE stage_runs
SET state = 'succeeded', result = :result, payload_ref = :payload_ref, payload_inline = :payload_inline,
    payload_bytes = :payload_bytes, finish_reason = :finish_reason, warnings = :warnings, finished_at = :at,
    snapshot = NULL
WHERE {is_running}

-- name: end_if_running
UPDATE stage_runs SET state = :state, failures = :failures, finished_at = :at, snapshot = NULL WHERE {is_running}

-- name: requeue_if_running
UPDATE stage_runs
SET state = 'queued', owner = NULL, failures = :failures, due = :due, apart = :apart,
    queue_deadline = :due + queue_limit_s, reason = :reason, progress = NULL
WHERE {is_running}

-- name: set_snapshot_if_held
UPDATE stage_runs SET snapshot = :snapshot WHERE {is_running} AND owner = :worker

-- name: queue_if_pending
UPDATE stage_runs SET state = 'queued', queued_at = :at, due = :at, queue_deadline = :at + queue_limit_s
WHERE id = :stage_run AND state || '' = 'pending'

-- name: cancel_if_waiting
UPDATE stage_runs SET state = 'cancelled', finished_at = :at, reason = NULL, snapshot = NULL
WHERE id {ids} AND state IN ('pending', 'queued')
RETURNING id

-- name: set_job
UPDATE jobs
SET state = :state, ending = :ending, error = coalesce(:error, error), error_code = coalesce(:error_code, error_code),
    finished_at = :at, prune_at = :prune_at, payloads_gone = payloads_gone OR :no_payloads
WHERE id = :job

-- name: forget_payload
UPDATE stage_runs SET payload_ref = NULL, payload_inline = NULL, payload_gone = 1 WHERE id = :stage_run

-- Each run of a job has three events at most, so that a number is new even where all earlier ones are pruned.
-- name: insert_event
INSERT INTO events (job_id, number, type, data, at)
SELECT id, coalesce((SELECT max(number) FROM events WHERE job_id = jobs.id), 3 * retries) + 1, :type, :data, :at
FROM jobs WHERE id = :job_id

-- name: insert_error
INSERT INTO attempt_errors (stage_run_id, attempt, worker, error, at)
VALUES (:stage_run, :attempt, :worker, :error, :at)

-- name: insert_artifact
INSERT INTO artifacts (job_id, name, stage_run_id, media_type, ref, created_at)
VALUES (:job_id, :name, :stage_run, :media_type, :ref, :at)

-- name: insert_garbage
INSERT INTO garbage (job_id, what) VALUES (:job_id, :what)

-- name: set_pruned
UPDATE jobs
SET prune_at = :prune_at, payloads_gone = :payloads_gone, inputs_gone = :inputs_gone, artifacts_gone = :artifacts_gone
WHERE id = :job


-- Stored bytes.

-- name: add_stored_bytes
INSERT INTO stored_bytes (tenant, part, bytes) VALUES (:tenant, :part, :bytes)
ON CONFLICT (tenant, part) DO UPDATE SET bytes = stored_bytes.bytes + excluded.bytes

-- What omni_jobs.jobs.stored_bytes counts. It has JOB_ROW and STAGE_RUN_ROW as well.
-- name: stored_bytes_of_jobs
SELECT tenant, sum(stored) FROM (
    SELECT tenant, length(request) + length(metadata) + 1024 AS stored FROM jobs WHERE id {names}
    UNION ALL
    SELECT tenant, json_extract(value, '$.size') FROM jobs, json_each(media) WHERE jobs.id {names} AND inputs_gone = 0
    UNION ALL
    SELECT (SELECT tenant FROM jobs WHERE id = job_id),
           512 + coalesce(length(result), 0) + CASE WHEN payload_gone THEN 0 ELSE coalesce(payload_bytes, 0) END
    FROM stage_runs WHERE job_id {names}
    UNION ALL
    SELECT (SELECT tenant FROM jobs WHERE id = job_id), json_extract(ref, '$.size') FROM artifacts WHERE job_id {names}
) AS kept GROUP BY tenant

-- name: stored_bytes_of_tenant
SELECT coalesce(sum(bytes), 0) FROM stored_bytes WHERE tenant = :tenant
