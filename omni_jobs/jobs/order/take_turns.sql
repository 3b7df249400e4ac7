-- keep_tenants: the same, and the tenants stay until the transaction's end. Waits for who deletes or changes them.
-- postgresql
SELECT name, weight, limits FROM tenants WHERE name {names} FOR KEY SHARE
-- sqlite
SELECT name, weight, limits FROM tenants WHERE name {names}

-- lock_turns: locks and reads the tenants' last turns in pipelines, with those of jobs that were let in.
-- postgresql
SELECT turns.pipeline, turns.tenant,
       greatest(turns.high, quota.high), greatest(turns.normal, quota.normal), greatest(turns.low, quota.low)
FROM turns LEFT JOIN quota_turns AS quota ON quota.pipeline = turns.pipeline AND quota.tenant = turns.tenant
WHERE turns.pipeline {names} AND turns.tenant {key_names}
ORDER BY turns.pipeline, turns.tenant
FOR UPDATE OF turns
-- sqlite
SELECT turns.pipeline, turns.tenant,
       max(turns.high, coalesce(quota.high, 0)),
       max(turns.normal, coalesce(quota.normal, 0)),
       max(turns.low, coalesce(quota.low, 0))
FROM turns LEFT JOIN quota_turns AS quota ON quota.pipeline = turns.pipeline AND quota.tenant = turns.tenant
WHERE turns.pipeline {names} AND turns.tenant {key_names}

-- time: reads the time.
SELECT {now}

-- insert_turns_unless_there: makes the rows of last turns.
-- postgresql
INSERT INTO turns (pipeline, tenant, high, normal, low)
SELECT given.*, 0, 0, 0 FROM {rows} AS given(pipeline text, tenant text)
ORDER BY given.pipeline, given.tenant
ON CONFLICT DO NOTHING
RETURNING 1
-- sqlite
INSERT INTO turns (pipeline, tenant, high, normal, low) VALUES (:pipeline, :tenant, 0, 0, 0) ON CONFLICT DO NOTHING

-- set_turns: writes the last turns.
-- postgresql
UPDATE turns SET high = given.high, normal = given.normal, low = given.low
FROM {rows} AS given(pipeline text, tenant text, high bigint, normal bigint, low bigint)
WHERE turns.pipeline = given.pipeline AND turns.tenant = given.tenant AND turns.pipeline {key_names}
RETURNING 1
-- sqlite
UPDATE turns SET high = :high, normal = :normal, low = :low WHERE pipeline = :pipeline AND tenant = :tenant
