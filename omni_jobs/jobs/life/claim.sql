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

-- claim_next: claims the stage runs of the line with the lowest turns.
-- postgresql
{claimed}
WHERE id = ANY (ARRAY(
    SELECT run.id FROM stage_runs AS run
    WHERE {in_line} AND {is_claimable}
    ORDER BY run.turn, run.id
    LIMIT CAST(:at_most AS integer)
    FOR UPDATE OF run SKIP LOCKED))
RETURNING id
-- sqlite
{claimed}
WHERE id IN (
    SELECT run.id FROM stage_runs AS run
    WHERE {in_line} AND {is_claimable}
    ORDER BY run.turn, run.id
    LIMIT CAST(:at_most AS integer))
RETURNING id

-- claim_next_high: claims those of high jobs.
-- Their index alone serves it, because the state is written as in its predicate.
-- postgresql
{claimed}
WHERE id = ANY (ARRAY(
    SELECT run.id FROM stage_runs AS run
    WHERE {of_worker} AND run.is_high AND run.state || '' = 'queued' AND {is_claimable}
    ORDER BY run.turn, run.id
    LIMIT CAST(:at_most AS integer)
    FOR UPDATE OF run SKIP LOCKED))
RETURNING id
-- sqlite
{claimed}
WHERE id IN (
    SELECT run.id FROM stage_runs AS run
    WHERE {of_worker} AND run.is_high AND run.state || '' = 'queued' AND {is_claimable}
    ORDER BY run.turn, run.id
    LIMIT CAST(:at_most AS integer))
RETURNING id

-- the_suspect: the suspect of this id, if it is still free.
-- postgresql
SELECT run.id FROM stage_runs AS run
WHERE run.id = CAST(:suspect AS bigint) AND run.state || '' = 'queued' AND {is_free_suspect} AND {has_lease}
FOR UPDATE OF run SKIP LOCKED
-- sqlite
SELECT run.id FROM stage_runs AS run
WHERE run.id = CAST(:suspect AS integer) AND run.state || '' = 'queued' AND {is_free_suspect} AND {has_lease}

-- claim_suspect: claims the suspect.
-- postgresql
{claimed}
WHERE id = ANY (ARRAY({the_suspect}))
RETURNING id
-- sqlite
{claimed}
WHERE id IN ({the_suspect})
RETURNING id

-- set_suspect_apart: sets the suspect apart for this worker, which runs it once it is idle.
-- postgresql
UPDATE stage_runs SET apart = :worker
WHERE id = ANY (ARRAY({the_suspect}))
RETURNING id
-- sqlite
UPDATE stage_runs SET apart = :worker
WHERE id IN ({the_suspect})
RETURNING id

-- running_of_worker: all stage runs that SQL has as running on the worker.
SELECT id FROM stage_runs WHERE state = 'running' AND owner = :worker

-- start_unless_locked: starts the jobs of claimed stage runs.
-- A job that is locked is about to end or to be started by another claim: nobody waits for it.
-- postgresql
UPDATE jobs
SET state = 'in_progress', started_at = (SELECT max(run.started_at) FROM stage_runs AS run WHERE run.job_id = jobs.id)
WHERE id = ANY (ARRAY(
    SELECT job.id FROM jobs AS job
    WHERE job.id = ANY (ARRAY(SELECT job_id FROM stage_runs WHERE id {ids})) AND job.state || '' = 'queued'
    FOR NO KEY UPDATE SKIP LOCKED))
RETURNING id
-- sqlite
UPDATE jobs
SET state = 'in_progress', started_at = (SELECT max(run.started_at) FROM stage_runs AS run WHERE run.job_id = jobs.id)
WHERE id IN (SELECT job_id FROM stage_runs WHERE id {ids}) AND state || '' = 'queued'
RETURNING id

-- claimed_stage_runs: reads the claimed stage runs in the order of their turns.
SELECT id, job_id, stage, attempt, inputs, has_successors, retries, failures, is_high, snapshot FROM stage_runs
WHERE id {ids}
ORDER BY turn, id

-- claimed_jobs: reads their jobs.
-- postgresql
SELECT id, pipeline, request, media, seed FROM jobs
WHERE id = ANY (ARRAY(SELECT job_id FROM stage_runs WHERE id {ids}))
-- sqlite
SELECT id, pipeline, request, media, seed FROM jobs WHERE id IN (SELECT job_id FROM stage_runs WHERE id {ids})

-- claimed_payloads: reads the payloads of the earlier stages of those that have inputs.
-- postgresql
SELECT job_id, stage, payload_ref, payload_inline FROM stage_runs
WHERE job_id = ANY (ARRAY(SELECT job_id FROM stage_runs WHERE id {ids} AND inputs <> '[]'))
    AND state || '' = 'succeeded'
-- sqlite
SELECT job_id, stage, payload_ref, payload_inline FROM stage_runs
WHERE job_id IN (SELECT job_id FROM stage_runs WHERE id {ids} AND inputs <> '[]') AND state || '' = 'succeeded'

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
