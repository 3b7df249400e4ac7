-- of_worker: the due stage runs of the worker's stage that were submitted with its pipeline file.
run.pipeline = (SELECT pipeline FROM workers WHERE id = :worker)
    AND run.stage = (SELECT stage FROM workers WHERE id = :worker)
    AND run.pipeline_digest = (SELECT pipeline_digest FROM workers WHERE id = :worker)
    AND run.due <= {now}

-- in_line: what waits in the worker's line.
{of_worker} AND run.state = 'queued'

-- is_free_suspect: a suspect that no other live worker waits to run.
run.apart IS NOT NULL
    AND (run.apart = :worker
         OR NOT EXISTS (SELECT 1 FROM workers WHERE id = run.apart AND lease_until > {now}))

-- suspect: the first free suspect of the line.
SELECT run.id FROM stage_runs AS run WHERE {in_line} AND {is_free_suspect} ORDER BY run.turn LIMIT 1

-- has_lease: whether the worker's lease runs.
EXISTS (SELECT 1 FROM workers WHERE id = :worker AND lease_until > {now})

-- lease_and_suspect: what a claim must know first: whether the lease runs, and a suspect that waits.
-- The lease is NULL where the worker has no row.
SELECT (SELECT lease_until > {now} FROM workers WHERE id = :worker), ({suspect})

-- claimed: gives stage runs to the worker, each with its next attempt.
UPDATE stage_runs
SET state = 'running', attempt = attempt + 1, owner = :worker, started_at = {now}, reason = NULL, progress = NULL

-- is_claimable: no suspect itself, and no suspect waits.
run.apart IS NULL AND {has_lease} AND NOT EXISTS ({suspect})

-- next_in_line: the stage runs of the line with the lowest turns.
SELECT run.id FROM stage_runs AS run
WHERE {in_line} AND {is_claimable}
ORDER BY run.turn, run.id
LIMIT CAST(:at_most AS integer)
{lock_free_runs}

-- claim_next: claims them.
{claimed} WHERE id {in next_in_line} RETURNING id

-- next_high: those of high jobs. Their index alone serves it, because the state is written as in its predicate.
SELECT run.id FROM stage_runs AS run
WHERE {of_worker} AND run.is_high AND run.state || '' = 'queued' AND {is_claimable}
ORDER BY run.turn, run.id
LIMIT CAST(:at_most AS integer)
{lock_free_runs}

-- claim_next_high: claims them.
{claimed} WHERE id {in next_high} RETURNING id

-- the_suspect: the suspect of this id, if it is still free.
SELECT run.id FROM stage_runs AS run
WHERE run.id = CAST(:suspect AS bigint) AND run.state || '' = 'queued' AND {is_free_suspect} AND {has_lease}
{lock_free_runs}

-- claim_suspect: claims the suspect.
{claimed} WHERE id {in the_suspect} RETURNING id

-- set_suspect_apart: sets the suspect apart for this worker, which runs it once it is idle.
UPDATE stage_runs SET apart = :worker WHERE id {in the_suspect} RETURNING id

-- running_of_worker: all stage runs that SQL has as running on the worker.
SELECT id FROM stage_runs WHERE state = 'running' AND owner = :worker

-- start_unless_locked: starts the jobs of claimed stage runs.
-- A job that is locked is about to end or to be started by another claim: nobody waits for it.
-- postgresql
UPDATE jobs
SET state = 'in_progress', started_at = (SELECT max(run.started_at) FROM stage_runs AS run WHERE run.job_id = jobs.id)
WHERE id = ANY (ARRAY(
    SELECT job.id FROM jobs AS job
    WHERE job.id {in jobs_of_runs} AND job.state || '' = 'queued'
    FOR NO KEY UPDATE SKIP LOCKED))
RETURNING id
-- sqlite
UPDATE jobs
SET state = 'in_progress', started_at = (SELECT max(run.started_at) FROM stage_runs AS run WHERE run.job_id = jobs.id)
WHERE id {in jobs_of_runs} AND state || '' = 'queued'
RETURNING id

-- claimed_stage_runs: reads the claimed stage runs in the order of their turns.
SELECT id, job_id, stage, attempt, inputs, has_successors, retries, failures, is_high, snapshot, started_at - due
FROM stage_runs
WHERE id {ids}
ORDER BY turn, id

-- claimed_jobs: reads their jobs, their traces, and since when they are watched.
SELECT id, pipeline, request, media, seed, (SELECT traceparent FROM traced_jobs WHERE job_id = jobs.id),
       (SELECT since FROM watched_jobs WHERE job_id = jobs.id AND until > {now})
FROM jobs WHERE id {in jobs_of_runs}

-- jobs_with_inputs: the jobs of those that have inputs.
{jobs_of_runs} AND inputs <> '[]'

-- claimed_payloads: reads the payloads of their earlier stages.
SELECT job_id, stage, payload_ref, payload_inline, taken_from FROM stage_runs
WHERE job_id {in jobs_with_inputs} AND state || '' = 'succeeded'

-- note_turn: notes how far the worker has got in its line.
UPDATE workers SET turn = (SELECT max(turn) FROM stage_runs WHERE id {ids})
WHERE id = :worker AND coalesce(turn, -1) < (SELECT max(turn) FROM stage_runs WHERE id {ids})
RETURNING id

-- turn_of_line: how far the line has got: what waits shows it, because high jobs were claimed before others.
-- postgresql
least(
    (SELECT max(turn) FROM stage_runs WHERE id {ids}),
    (SELECT run.turn FROM stage_runs AS run WHERE {in_line} ORDER BY run.turn LIMIT 1))
-- sqlite
(SELECT min(turn) FROM (
    SELECT max(turn) AS turn FROM stage_runs WHERE id {ids}
    UNION ALL
    SELECT turn FROM (SELECT run.turn FROM stage_runs AS run WHERE {in_line} ORDER BY run.turn LIMIT 1)))

-- note_turn_of_line: the same of a worker that keeps slots for high jobs.
UPDATE workers SET turn = {turn_of_line}
WHERE id = :worker AND coalesce(turn, -1) < {turn_of_line}
RETURNING id
