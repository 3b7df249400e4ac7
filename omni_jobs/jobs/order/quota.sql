-- weights_and_limits: reads the weights and limits of tenants.
SELECT name, weight, limits FROM tenants WHERE name {names}

-- turns_of: reads a tenant's last turns in pipelines.
SELECT pipeline, high, normal, low FROM turns WHERE tenant = :tenant AND pipeline {names}

-- insert_quota_jobs_unless_there: puts jobs under their tenants' limits, held at first.
-- postgresql
INSERT INTO quota_jobs (job_id, tenant, turn, cost, is_let_in)
SELECT given.*, false FROM {rows} AS given(job_id text, tenant text, turn bigint, cost double precision)
ON CONFLICT DO NOTHING
RETURNING 1
-- sqlite
INSERT INTO quota_jobs (job_id, tenant, turn, cost, is_let_in) VALUES (:job_id, :tenant, :turn, :cost, 0)
ON CONFLICT DO NOTHING

-- delete_quota_jobs: forgets jobs that end.
DELETE FROM quota_jobs WHERE job_id {names} RETURNING 1

-- lock_tenant: locks a tenant's row, and reads its weight and limits.
SELECT weight, limits FROM tenants WHERE name = :tenant {lock}

-- count_let_in: counts a tenant's jobs that are let in, which have not ended, and reads the last place of these.
SELECT count(*), max(turn) FROM quota_jobs WHERE tenant = :tenant AND is_let_in = true

-- quota_turns: reads a tenant's last turns of jobs that were let in; of pipeline '', the order of being let in.
SELECT pipeline, high, normal, low FROM quota_turns WHERE tenant = :tenant

-- set_quota_turns: writes them.
-- postgresql
INSERT INTO quota_turns (pipeline, tenant, high, normal, low)
SELECT * FROM {rows} AS given(pipeline text, tenant text, high bigint, normal bigint, low bigint)
ON CONFLICT (pipeline, tenant) DO UPDATE SET high = excluded.high, normal = excluded.normal, low = excluded.low
RETURNING 1
-- sqlite
INSERT INTO quota_turns (pipeline, tenant, high, normal, low) VALUES (:pipeline, :tenant, :high, :normal, :low)
ON CONFLICT (pipeline, tenant) DO UPDATE SET high = excluded.high, normal = excluded.normal, low = excluded.low

-- let_in: lets in held jobs. One that is locked is about to end, and who ends it lets in another.
-- postgresql
UPDATE quota_jobs SET is_let_in = true
WHERE job_id = ANY (ARRAY(
    SELECT quota.job_id FROM quota_jobs AS quota JOIN jobs AS job ON job.id = quota.job_id
    WHERE quota.tenant = :tenant AND NOT quota.is_let_in AND job.state || '' = 'queued'
    ORDER BY quota.turn, quota.job_id
    LIMIT CAST(:at_most AS integer)
    FOR NO KEY UPDATE OF job SKIP LOCKED))
RETURNING turn, job_id, cost
-- sqlite
UPDATE quota_jobs SET is_let_in = 1
WHERE job_id IN (
    SELECT quota.job_id FROM quota_jobs AS quota JOIN jobs AS job ON job.id = quota.job_id
    WHERE quota.tenant = :tenant AND quota.is_let_in = 0 AND job.state || '' = 'queued'
    ORDER BY quota.turn, quota.job_id
    LIMIT CAST(:at_most AS integer))
RETURNING turn, job_id, cost

-- stages_of_jobs: reads the stages of jobs, with what their turns need.
SELECT job_id, stage, pipeline, (SELECT pipeline_digest FROM jobs WHERE id = job_id),
       (SELECT priority FROM jobs WHERE id = job_id)
FROM stage_runs WHERE job_id {names}

-- set_turn: gives the stage runs of jobs their turn.
-- postgresql
UPDATE stage_runs SET turn = given.turn
FROM {rows} AS given(job_id text, turn bigint)
WHERE stage_runs.job_id = given.job_id AND stage_runs.job_id {key_names}
RETURNING 1
-- sqlite
UPDATE stage_runs SET turn = :turn WHERE job_id = :job_id

-- queue_if_held: queues the stage runs of jobs that were held.
UPDATE stage_runs
SET state = 'queued', queued_at = {now}, due = {now}, queue_deadline = {now} + queue_limit_s, reason = NULL
WHERE job_id {names} AND state || '' = 'pending' AND reason = 'quota'
RETURNING queue
