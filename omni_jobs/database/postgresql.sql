-- The statements that run for every job, as PostgreSQL has them. omni_jobs.database.statement reads this file.
-- A line that begins with "-- name:" names the statement below it; {name} stands for the text of an earlier one.
-- All parameters are text. ":ids" is a JSON list; ":rows" is a JSON list of objects, the rows of a bulk statement, and
-- ":keys" the list of their first values. Lists become arrays, because the planner may scan a table for a join, or for
-- a list whose length it does not know. "state || ''" is a guard on rows found by their ids: no index serves it, because
-- by statistics that lag behind a queue the index of a state looks short.

-- name: now
extract(epoch from statement_timestamp())::double precision

-- name: ids
ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(CAST(:ids AS json))))

-- name: names
ANY (ARRAY(SELECT value FROM json_array_elements_text(CAST(:ids AS json))))

-- name: keys
ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(CAST(:keys AS json))))

-- name: key_names
ANY (ARRAY(SELECT value FROM json_array_elements_text(CAST(:keys AS json))))

-- name: rows
json_to_recordset(CAST(:rows AS json))

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
WHERE id = ANY (ARRAY(
    SELECT run.id FROM stage_runs AS run
    WHERE {in_line} AND {is_claimable}
    ORDER BY run.turn, run.id
    LIMIT CAST(:at_most AS integer)
    FOR UPDATE OF run SKIP LOCKED))
RETURNING id

-- The index of high jobs alone serves it, because the state is written as in its predicate.
-- name: claim_next_high
{claimed}
WHERE id = ANY (ARRAY(
    SELECT run.id FROM stage_runs AS run
    WHERE {of_worker} AND run.is_high AND run.state || '' = 'queued' AND {is_claimable}
    ORDER BY run.turn, run.id
    LIMIT CAST(:at_most AS integer)
    FOR UPDATE OF run SKIP LOCKED))
RETURNING id

-- name: the_suspect
SELECT run.id FROM stage_runs AS run
WHERE run.id = CAST(:suspect AS bigint) AND run.state || '' = 'queued' AND {is_free_suspect} AND {has_lease}
FOR UPDATE OF run SKIP LOCKED

-- name: claim_suspect
{claimed}
WHERE id = ANY (ARRAY({the_suspect}))
RETURNING id

-- name: set_suspect_apart
UPDATE stage_runs SET apart = :worker
WHERE id = ANY (ARRAY({the_suspect}))
RETURNING id

-- name: running_of_worker
SELECT id FROM stage_runs WHERE state = 'running' AND owner = :worker

-- A job that is locked is about to end or to be started by another claim: nobody waits for it.
-- name: start_unless_locked
UPDATE jobs
SET state = 'in_progress', started_at = (SELECT max(run.started_at) FROM stage_runs AS run WHERE run.job_id = jobs.id)
WHERE id = ANY (ARRAY(
    SELECT job.id FROM jobs AS job
    WHERE job.id = ANY (ARRAY(SELECT job_id FROM stage_runs WHERE id = {ids})) AND job.state || '' = 'queued'
    FOR NO KEY UPDATE SKIP LOCKED))
RETURNING id

-- name: claimed_stage_runs
SELECT id, job_id, stage, attempt, inputs, capture, retries, failures, is_high, snapshot FROM stage_runs
WHERE id = {ids}
ORDER BY turn, id

-- name: claimed_jobs
SELECT id, pipeline, request, media, seed FROM jobs
WHERE id = ANY (ARRAY(SELECT job_id FROM stage_runs WHERE id = {ids}))

-- name: claimed_payloads
SELECT job_id, stage, payload_ref, payload_inline FROM stage_runs
WHERE job_id = ANY (ARRAY(SELECT job_id FROM stage_runs WHERE id = {ids} AND inputs <> '[]'))
    AND state || '' = 'succeeded'

-- name: note_turn
UPDATE workers SET turn = (SELECT max(turn) FROM stage_runs WHERE id = {ids})
WHERE id = :worker AND coalesce(turn, -1) < (SELECT max(turn) FROM stage_runs WHERE id = {ids})
RETURNING id

-- High jobs that were claimed before others do not show how far the line has got: what waits does.
-- name: turn_of_line
least(
    (SELECT max(turn) FROM stage_runs WHERE id = {ids}),
    (SELECT run.turn FROM stage_runs AS run WHERE {in_line} ORDER BY run.turn LIMIT 1))

-- name: note_turn_of_line
UPDATE workers SET turn = {turn_of_line}
WHERE id = :worker AND coalesce(turn, -1) < {turn_of_line}
RETURNING id


-- Submit.

-- name: weights_and_limits
SELECT name, weight, limits FROM tenants WHERE name = {names}

-- Waits for who deletes or changes them, and then they stay until the transaction's end.
-- name: keep_tenants
{weights_and_limits} FOR KEY SHARE

-- name: lock_turns
SELECT turns.pipeline, turns.tenant,
       greatest(turns.high, quota.high), greatest(turns.normal, quota.normal), greatest(turns.low, quota.low)
FROM turns LEFT JOIN quota_turns AS quota ON quota.pipeline = turns.pipeline AND quota.tenant = turns.tenant
WHERE turns.pipeline = {names} AND turns.tenant = {key_names}
ORDER BY turns.pipeline, turns.tenant
FOR UPDATE OF turns

-- name: turns_of
SELECT pipeline, high, normal, low FROM turns WHERE tenant = :tenant AND pipeline = {names}

-- name: insert_turns_unless_there
INSERT INTO turns (pipeline, tenant, high, normal, low)
SELECT given.*, 0, 0, 0 FROM {rows} AS given(pipeline text, tenant text)
ORDER BY given.pipeline, given.tenant
ON CONFLICT DO NOTHING
RETURNING 1

-- name: set_turns
UPDATE turns SET high = given.high, normal = given.normal, low = given.low
FROM {rows} AS given(pipeline text, tenant text, high bigint, normal bigint, low bigint)
WHERE turns.pipeline = given.pipeline AND turns.tenant = given.tenant AND turns.pipeline = {key_names}
RETURNING 1

-- name: first_turn
SELECT turn FROM stage_runs
WHERE pipeline = :pipeline AND stage = :stage AND pipeline_digest = :digest AND state = 'queued' AND due <= {now}
ORDER BY turn LIMIT 1

-- name: claimed_turn
SELECT max(turn) FROM workers WHERE pipeline = :pipeline

-- name: highest_turn
SELECT greatest(
    (SELECT max(greatest(normal, low)) FROM turns WHERE pipeline = :pipeline),
    (SELECT max(greatest(normal, low)) FROM quota_turns WHERE pipeline = :pipeline))

-- name: insert_jobs_unless_there
INSERT INTO jobs (id, pipeline, pipeline_version, pipeline_digest, modalities, request, request_digest,
                  idempotency_key, media, metadata, seed, tenant, priority, cost, deadline, created_at,
                  state, retries, payloads_gone, inputs_gone, artifacts_gone)
SELECT given.*, 'queued', 0, false, false, false
FROM {rows} AS given(id text, pipeline text, pipeline_version text, pipeline_digest text, modalities text, request text,
                     request_digest text, idempotency_key text, media text, metadata text, seed bigint, tenant text,
                     priority text, cost double precision, deadline double precision,
                     created_at double precision)
ON CONFLICT DO NOTHING
RETURNING 1

-- name: insert_stage_runs_unless_there
INSERT INTO stage_runs (job_id, position, pipeline, pipeline_digest, stage, queue, inputs, capture, retries,
                        queue_limit_s, is_high, state, turn, queued_at, due, queue_deadline, reason, attempt,
                        payload_gone)
SELECT given.*, 0, false
FROM {rows} AS given(job_id text, position integer, pipeline text, pipeline_digest text, stage text, queue text,
                     inputs text, capture boolean, retries text, queue_limit_s double precision, is_high boolean,
                     state text, turn bigint, queued_at double precision, due double precision,
                     queue_deadline double precision, reason text)
ON CONFLICT DO NOTHING
RETURNING 1


-- Quota.

-- name: insert_quota_jobs_unless_there
INSERT INTO quota_jobs (job_id, tenant, turn, cost, is_let_in)
SELECT given.*, false FROM {rows} AS given(job_id text, tenant text, turn bigint, cost double precision)
ON CONFLICT DO NOTHING
RETURNING 1

-- name: delete_quota_jobs
DELETE FROM quota_jobs WHERE job_id = {names} RETURNING 1

-- name: lock_tenant
SELECT weight, limits FROM tenants WHERE name = :tenant
FOR NO KEY UPDATE

-- Older builds end a job without deleting its row.
-- name: count_let_in
SELECT count(*), max(quota.turn) FROM quota_jobs AS quota JOIN jobs AS job ON job.id = quota.job_id
WHERE quota.tenant = :tenant AND quota.is_let_in AND job.finished_at IS NULL

-- The last turns of those that were let in to a pipeline; of pipeline '', the order in which jobs are let in.
-- name: quota_turns
SELECT pipeline, high, normal, low FROM quota_turns WHERE tenant = :tenant

-- name: set_quota_turns
INSERT INTO quota_turns (pipeline, tenant, high, normal, low)
SELECT * FROM {rows} AS given(pipeline text, tenant text, high bigint, normal bigint, low bigint)
ON CONFLICT (pipeline, tenant) DO UPDATE SET high = excluded.high, normal = excluded.normal, low = excluded.low
RETURNING 1

-- A held job that is locked is about to end, and who ends it lets in another.
-- name: let_in
UPDATE quota_jobs SET is_let_in = true
WHERE job_id = ANY (ARRAY(
    SELECT quota.job_id FROM quota_jobs AS quota JOIN jobs AS job ON job.id = quota.job_id
    WHERE quota.tenant = :tenant AND NOT quota.is_let_in AND job.state || '' = 'queued'
    ORDER BY quota.turn, quota.job_id
    LIMIT CAST(:at_most AS integer)
    FOR NO KEY UPDATE OF job SKIP LOCKED))
RETURNING turn, job_id, cost

-- name: stages_of_jobs
SELECT job_id, stage, pipeline, (SELECT pipeline_digest FROM jobs WHERE id = job_id),
       (SELECT priority FROM jobs WHERE id = job_id)
FROM stage_runs WHERE job_id = {names}

-- name: set_turn
UPDATE stage_runs SET turn = given.turn
FROM {rows} AS given(job_id text, turn bigint)
WHERE stage_runs.job_id = given.job_id AND stage_runs.job_id = {key_names}
RETURNING 1

-- name: queue_if_held
UPDATE stage_runs
SET state = 'queued', queued_at = {now}, due = {now}, queue_deadline = {now} + queue_limit_s, reason = NULL
WHERE job_id = {names} AND state || '' = 'pending' AND reason = 'quota'
RETURNING queue


-- Transitions.

-- name: job_locks
SELECT id, state, ending, tenant, {now} FROM jobs

-- name: lock_jobs
{job_locks} WHERE id = {names} ORDER BY id FOR NO KEY UPDATE

-- name: lock_jobs_of_stage_runs
{job_locks} WHERE id = ANY (ARRAY(SELECT job_id FROM stage_runs WHERE id = {ids})) ORDER BY id FOR NO KEY UPDATE

-- The rows have no order, because for one the planner might walk the whole primary key.
-- name: stage_run_columns
SELECT id, job_id, stage, queue, inputs, state, attempt, failures, retries, owner, payload_bytes, payload_ref,
       payload_gone, reason, snapshot,
       CASE position WHEN 0 THEN (SELECT tenant FROM quota_jobs WHERE job_id = stage_runs.job_id) END
FROM stage_runs

-- name: stage_runs_of_jobs
{stage_run_columns} WHERE job_id = {names}

-- name: stage_runs_of_same_jobs
{stage_run_columns} WHERE job_id = ANY (ARRAY(SELECT job_id FROM stage_runs WHERE id = {ids}))

-- name: is_running
stage_runs.id = given.stage_run AND stage_runs.id = {keys}
    AND stage_runs.attempt = given.held_attempt AND stage_runs.state || '' = 'running'

-- name: complete_if_running
UPDATE stage_runs
SET state = 'succeeded', result = given.result, payload_ref = given.payload_ref,
    payload_inline = decode(given.payload_inline, 'hex'), payload_bytes = given.payload_bytes,
    finish_reason = given.finish_reason, warnings = given.warnings, finished_at = given.at, snapshot = NULL
FROM {rows} AS given(stage_run bigint, held_attempt integer, result text, payload_ref text, payload_inline text,
                     payload_bytes bigint, finish_reason text, warnings text, at double precision)
WHERE {is_running}
RETURNING 1

-- name: end_if_running
UPDATE stage_runs SET state = given.state, failures = given.failures, finished_at = given.at, snapshot = NULL
FROM {rows} AS given(stage_run bigint, held_attempt integer, state text, failures text, at double precision)
WHERE {is_running}
RETURNING 1

-- name: requeue_if_running
UPDATE stage_runs
SET state = 'queued', owner = NULL, failures = given.failures, due = given.due, apart = given.apart,
    queue_deadline = given.due + queue_limit_s, reason = given.reason, progress = NULL
FROM {rows} AS given(stage_run bigint, held_attempt integer, failures text, due double precision, apart text,
                     reason text)
WHERE {is_running}
RETURNING 1

-- name: set_snapshot_if_held
UPDATE stage_runs SET snapshot = given.snapshot
FROM {rows} AS given(stage_run bigint, held_attempt integer, worker text, snapshot text)
WHERE {is_running} AND stage_runs.owner = given.worker
RETURNING 1

-- name: queue_if_pending
UPDATE stage_runs SET state = 'queued', queued_at = given.at, due = given.at, queue_deadline = given.at + queue_limit_s
FROM {rows} AS given(stage_run bigint, at double precision)
WHERE stage_runs.id = given.stage_run AND stage_runs.id = {keys} AND stage_runs.state || '' = 'pending'
RETURNING 1

-- name: cancel_if_waiting
UPDATE stage_runs SET state = 'cancelled', finished_at = CAST(:at AS double precision), reason = NULL, snapshot = NULL
WHERE id = {ids} AND state IN ('pending', 'queued')
RETURNING id

-- name: set_job
UPDATE jobs
SET state = given.state, ending = given.ending, error = coalesce(given.error, jobs.error),
    error_code = coalesce(given.error_code, jobs.error_code), finished_at = given.at, prune_at = given.prune_at,
    payloads_gone = jobs.payloads_gone OR given.no_payloads
FROM {rows} AS given(job text, state text, ending text, error text, error_code text, at double precision,
                     prune_at double precision, no_payloads boolean)
WHERE jobs.id = given.job AND jobs.id = {key_names}
RETURNING 1

-- name: forget_payload
UPDATE stage_runs SET payload_ref = NULL, payload_inline = NULL, payload_gone = true
FROM {rows} AS given(stage_run bigint)
WHERE stage_runs.id = given.stage_run AND stage_runs.id = {keys}
RETURNING 1

-- Each run of a job has three events at most, so that a number is new even where all earlier ones are pruned.
-- name: insert_event
INSERT INTO events (job_id, number, type, data, at)
SELECT given.job_id,
       coalesce((SELECT max(number) FROM events WHERE events.job_id = given.job_id), 3 * jobs.retries)
       + row_number() OVER (PARTITION BY given.job_id),
       given.type, given.data, given.at
FROM {rows} AS given(job_id text, type text, data text, at double precision)
JOIN jobs ON jobs.id = given.job_id AND jobs.id = {key_names}
RETURNING 1

-- name: insert_error
INSERT INTO attempt_errors (stage_run_id, attempt, worker, error, at)
SELECT * FROM {rows} AS given(stage_run bigint, attempt integer, worker text, error text, at double precision)
RETURNING 1

-- name: insert_artifact
INSERT INTO artifacts (job_id, name, stage_run_id, media_type, ref, created_at)
SELECT * FROM {rows} AS given(job_id text, name text, stage_run bigint, media_type text, ref text, at double precision)
RETURNING 1

-- name: insert_garbage
INSERT INTO garbage (job_id, what) SELECT * FROM {rows} AS given(job_id text, what text)
RETURNING 1

-- name: set_pruned
UPDATE jobs
SET prune_at = given.prune_at, payloads_gone = given.payloads_gone, inputs_gone = given.inputs_gone,
    artifacts_gone = given.artifacts_gone
FROM {rows} AS given(job text, prune_at double precision, payloads_gone boolean, inputs_gone boolean,
                     artifacts_gone boolean)
WHERE jobs.id = given.job AND jobs.id = {key_names}
RETURNING 1


-- Stored bytes.

-- name: add_stored_bytes
INSERT INTO stored_bytes (tenant, part, bytes)
SELECT * FROM {rows} AS given(tenant text, part integer, bytes bigint)
ON CONFLICT (tenant, part) DO UPDATE SET bytes = stored_bytes.bytes + excluded.bytes
RETURNING 1

-- What omni_jobs.jobs.stored_bytes counts. It has JOB_ROW and STAGE_RUN_ROW as well.
-- name: stored_bytes_of_jobs
SELECT tenant, sum(stored) FROM (
    SELECT tenant, octet_length(request) + octet_length(metadata) + 1024 AS stored FROM jobs WHERE id = {names}
    UNION ALL
    SELECT tenant, (value ->> 'size')::bigint FROM jobs, json_array_elements(media::json) AS each(value) WHERE jobs.id = {names} AND inputs_gone = false
    UNION ALL
    SELECT (SELECT tenant FROM jobs WHERE id = job_id),
           512 + coalesce(octet_length(result), 0) + CASE WHEN payload_gone THEN 0 ELSE coalesce(payload_bytes, 0) END
    FROM stage_runs WHERE job_id = {names}
    UNION ALL
    SELECT (SELECT tenant FROM jobs WHERE id = job_id), (ref::json ->> 'size')::bigint FROM artifacts WHERE job_id = {names}
) AS kept GROUP BY tenant

-- name: stored_bytes_of_tenant
SELECT coalesce(sum(bytes), 0) FROM stored_bytes WHERE tenant = :tenant
