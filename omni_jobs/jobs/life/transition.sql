-- job_locks: what a transition reads of a job as it locks it.
SELECT id, state, ending, tenant, (SELECT traceparent FROM traced_jobs WHERE job_id = jobs.id), pipeline,
       (SELECT 1 FROM keeping_jobs WHERE job_id = jobs.id), {now}
FROM jobs

-- lock_jobs: locks jobs in the order of their ids.
{job_locks} WHERE id {names} ORDER BY id {lock}

-- lock_jobs_of_stage_runs: locks the jobs of stage runs in the order of their ids.
{job_locks} WHERE id {in jobs_of_runs} ORDER BY id {lock}

-- stage_run_columns: what a transition reads of a stage run.
-- The rows have no order, because for one the planner might walk the whole primary key.
SELECT id, job_id, stage, queue, inputs, state, attempt, failures, retries, owner, payload_bytes, payload_ref,
       payload_gone, reason, snapshot, started_at, usage,
       CASE position WHEN 0 THEN (SELECT tenant FROM quota_jobs WHERE job_id = stage_runs.job_id) END
FROM stage_runs

-- stage_runs_of_jobs: reads the stage runs of jobs.
{stage_run_columns} WHERE job_id {names}

-- stage_runs_of_same_jobs: reads all stage runs of the jobs of these.
{stage_run_columns} WHERE job_id {in jobs_of_runs}

-- is_running: the row's stage run, while it runs the row's attempt.
-- postgresql
stage_runs.id = given.stage_run AND stage_runs.id {keys}
    AND stage_runs.attempt = given.held_attempt AND stage_runs.state || '' = 'running'
-- sqlite
id = :stage_run AND attempt = :held_attempt AND state || '' = 'running'

-- complete_if_running: ends running stage runs that have succeeded.
-- postgresql
UPDATE stage_runs
SET state = 'succeeded', result = given.result, payload_ref = given.payload_ref,
    payload_inline = decode(given.payload_inline, 'hex'), payload_bytes = given.payload_bytes,
    finish_reason = given.finish_reason, warnings = given.warnings, finished_at = given.at, snapshot = NULL,
    usage = given.usage, steps = given.steps
FROM {rows} AS given(stage_run bigint, held_attempt integer, result text, payload_ref text, payload_inline text,
                     payload_bytes bigint, finish_reason text, warnings text, at double precision, usage text,
                     steps text)
WHERE {is_running}
RETURNING 1
-- sqlite
UPDATE stage_runs
SET state = 'succeeded', result = :result, payload_ref = :payload_ref, payload_inline = :payload_inline,
    payload_bytes = :payload_bytes, finish_reason = :finish_reason, warnings = :warnings, finished_at = :at,
    snapshot = NULL, usage = :usage, steps = :steps
WHERE {is_running}

-- end_if_running: ends running stage runs otherwise.
-- postgresql
UPDATE stage_runs
SET state = given.state, failures = given.failures, finished_at = given.at, snapshot = NULL, usage = given.usage,
    steps = given.steps
FROM {rows} AS given(stage_run bigint, held_attempt integer, state text, failures text, at double precision, usage text,
                     steps text)
WHERE {is_running}
RETURNING 1
-- sqlite
UPDATE stage_runs
SET state = :state, failures = :failures, finished_at = :at, snapshot = NULL, usage = :usage, steps = :steps
WHERE {is_running}

-- requeue_if_running: queues running stage runs again.
-- postgresql
UPDATE stage_runs
SET state = 'queued', owner = NULL, failures = given.failures, due = given.due, apart = given.apart,
    queue_deadline = given.due + queue_limit_s, reason = given.reason, progress = NULL, usage = given.usage
FROM {rows} AS given(stage_run bigint, held_attempt integer, failures text, due double precision, apart text,
                     reason text, usage text)
WHERE {is_running}
RETURNING 1
-- sqlite
UPDATE stage_runs
SET state = 'queued', owner = NULL, failures = :failures, due = :due, apart = :apart,
    queue_deadline = :due + queue_limit_s, reason = :reason, progress = NULL, usage = :usage
WHERE {is_running}

-- set_snapshot_if_held: records a snapshot of a worker's running attempt.
-- postgresql
UPDATE stage_runs SET snapshot = given.snapshot
FROM {rows} AS given(stage_run bigint, held_attempt integer, worker text, snapshot text)
WHERE {is_running} AND stage_runs.owner = given.worker
RETURNING 1
-- sqlite
UPDATE stage_runs SET snapshot = :snapshot WHERE {is_running} AND owner = :worker

-- queue_if_pending: queues stage runs whose inputs are all there.
-- postgresql
UPDATE stage_runs SET state = 'queued', queued_at = given.at, due = given.at, queue_deadline = given.at + queue_limit_s
FROM {rows} AS given(stage_run bigint, at double precision)
WHERE stage_runs.id = given.stage_run AND stage_runs.id {keys} AND stage_runs.state || '' = 'pending'
RETURNING 1
-- sqlite
UPDATE stage_runs SET state = 'queued', queued_at = :at, due = :at, queue_deadline = :at + queue_limit_s
WHERE id = :stage_run AND state || '' = 'pending'

-- cancel_if_waiting: cancels stage runs that nobody has claimed.
UPDATE stage_runs SET state = 'cancelled', finished_at = CAST(:at AS double precision), reason = NULL, snapshot = NULL
WHERE id {ids} AND state IN ('pending', 'queued')
RETURNING id

-- set_job: writes a job's state and how it ended.
-- postgresql
UPDATE jobs
SET state = given.state, ending = given.ending, error = coalesce(given.error, jobs.error),
    error_code = coalesce(given.error_code, jobs.error_code), finished_at = given.at, prune_at = given.prune_at,
    payloads_gone = jobs.payloads_gone OR given.no_payloads
FROM {rows} AS given(job text, state text, ending text, error text, error_code text, at double precision,
                     prune_at double precision, no_payloads boolean)
WHERE jobs.id = given.job AND jobs.id {key_names}
RETURNING 1
-- sqlite
UPDATE jobs
SET state = :state, ending = :ending, error = coalesce(:error, error), error_code = coalesce(:error_code, error_code),
    finished_at = :at, prune_at = :prune_at, payloads_gone = payloads_gone OR :no_payloads
WHERE id = :job

-- forget_payload: forgets payloads that no stage needs any more.
-- postgresql
UPDATE stage_runs SET payload_ref = NULL, payload_inline = NULL, payload_gone = true
FROM {rows} AS given(stage_run bigint)
WHERE stage_runs.id = given.stage_run AND stage_runs.id {keys}
RETURNING 1
-- sqlite
UPDATE stage_runs SET payload_ref = NULL, payload_inline = NULL, payload_gone = 1 WHERE id = :stage_run

-- insert_event: writes events.
-- Each run of a job has three events at most, so that a number is new even where all earlier ones are pruned.
-- postgresql
INSERT INTO events (job_id, number, type, data, at)
SELECT given.job_id,
       coalesce((SELECT max(number) FROM events WHERE events.job_id = given.job_id), 3 * jobs.retries)
       + row_number() OVER (PARTITION BY given.job_id),
       given.type, given.data, given.at
FROM {rows} AS given(job_id text, type text, data text, at double precision)
JOIN jobs ON jobs.id = given.job_id AND jobs.id {key_names}
RETURNING 1
-- sqlite
INSERT INTO events (job_id, number, type, data, at)
SELECT id, coalesce((SELECT max(number) FROM events WHERE job_id = jobs.id), 3 * retries) + 1, :type, :data, :at
FROM jobs WHERE id = :job_id

-- insert_error: writes the errors of attempts.
-- postgresql
INSERT INTO attempt_errors (stage_run_id, attempt, worker, error, at, fingerprint, tenant)
SELECT * FROM {rows} AS given(stage_run bigint, attempt integer, worker text, error text, at double precision,
                              fingerprint text, tenant text)
RETURNING 1
-- sqlite
INSERT INTO attempt_errors (stage_run_id, attempt, worker, error, at, fingerprint, tenant)
VALUES (:stage_run, :attempt, :worker, :error, :at, :fingerprint, :tenant)

-- insert_artifact: writes artifacts.
-- postgresql
INSERT INTO artifacts (job_id, name, stage_run_id, media_type, ref, created_at)
SELECT * FROM {rows} AS given(job_id text, name text, stage_run bigint, media_type text, ref text, at double precision)
RETURNING 1
-- sqlite
INSERT INTO artifacts (job_id, name, stage_run_id, media_type, ref, created_at)
VALUES (:job_id, :name, :stage_run, :media_type, :ref, :at)
