-- queued_jobs: reads those of some jobs that nobody has started, with their lines.
SELECT id, pipeline, tenant, priority FROM jobs WHERE id {names} AND state || '' = 'queued'

-- lock_turns: locks a tenant's last turns in a pipeline.
SELECT 1 FROM turns WHERE pipeline = :pipeline AND tenant = :tenant {lock}

-- line: the oldest jobs of a line that have a turn, with the number of their stage runs.
SELECT job.id, (SELECT count(*) FROM stage_runs WHERE job_id = job.id)
FROM (SELECT id FROM jobs
      WHERE tenant = :tenant AND state = 'queued' AND pipeline || '' = :pipeline AND priority = :priority
      ORDER BY id LIMIT CAST(:at_most AS integer)) AS job
WHERE NOT EXISTS (SELECT 1 FROM quota_jobs AS quota WHERE quota.job_id = job.id AND quota.is_let_in = false)

-- free_runs: the stage runs of jobs that have not begun and that nobody has locked.
SELECT run.job_id, run.turn FROM stage_runs AS run
WHERE run.job_id {names} AND run.state || '' IN ('queued', 'pending')
{lock_free_runs}

-- set_turn: gives the stage runs of jobs their turn.
-- postgresql
UPDATE stage_runs SET turn = given.turn
FROM {rows} AS given(job_id text, turn bigint)
WHERE stage_runs.job_id = given.job_id AND stage_runs.job_id {key_names}
RETURNING 1
-- sqlite
UPDATE stage_runs SET turn = :turn WHERE job_id = :job_id

-- lock_tenant: locks a tenant's row.
SELECT 1 FROM tenants WHERE name = :tenant {lock}

-- held_jobs: the first of a tenant's held jobs, in the order of being let in, but for those that others have locked.
-- postgresql
SELECT quota.job_id, quota.turn FROM quota_jobs AS quota JOIN jobs AS job ON job.id = quota.job_id
WHERE quota.tenant = :tenant AND NOT quota.is_let_in AND job.priority = :priority AND job.state || '' = 'queued'
ORDER BY quota.turn, quota.job_id
LIMIT CAST(:at_most AS integer)
FOR UPDATE OF quota SKIP LOCKED
-- sqlite
SELECT quota.job_id, quota.turn FROM quota_jobs AS quota JOIN jobs AS job ON job.id = quota.job_id
WHERE quota.tenant = :tenant AND quota.is_let_in = 0 AND job.priority = :priority AND job.state || '' = 'queued'
ORDER BY quota.turn, quota.job_id
LIMIT CAST(:at_most AS integer)

-- set_held_turn: gives held jobs their places in the order of being let in.
-- postgresql
UPDATE quota_jobs SET turn = given.turn
FROM {rows} AS given(job_id text, turn bigint)
WHERE quota_jobs.job_id = given.job_id AND quota_jobs.job_id {key_names}
RETURNING 1
-- sqlite
UPDATE quota_jobs SET turn = :turn WHERE job_id = :job_id
