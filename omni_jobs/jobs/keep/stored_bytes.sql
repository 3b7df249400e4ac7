-- add_stored_bytes: adds to what tenants keep stored.
-- postgresql
INSERT INTO stored_bytes (tenant, part, bytes)
SELECT * FROM {rows} AS given(tenant text, part integer, bytes bigint)
ON CONFLICT (tenant, part) DO UPDATE SET bytes = stored_bytes.bytes + excluded.bytes
RETURNING 1
-- sqlite
INSERT INTO stored_bytes (tenant, part, bytes) VALUES (:tenant, :part, :bytes)
ON CONFLICT (tenant, part) DO UPDATE SET bytes = stored_bytes.bytes + excluded.bytes

-- stored_bytes_of_jobs: counts what is stored of jobs, by tenant. It has JOB_ROW, STAGE_RUN_ROW and LABEL_ROW as well.
-- postgresql
SELECT tenant, sum(stored) FROM (
    SELECT tenant, octet_length(request) + octet_length(metadata) + 1024 AS stored FROM jobs WHERE id {names}
    UNION ALL
    SELECT tenant, (value ->> 'size')::bigint FROM jobs, json_array_elements(media::json) AS each(value) WHERE jobs.id {names} AND inputs_gone = false
    UNION ALL
    SELECT (SELECT tenant FROM jobs WHERE id = job_id),
           512 + coalesce(octet_length(result), 0) + CASE WHEN payload_gone THEN 0 ELSE coalesce(payload_bytes, 0) END
    FROM stage_runs WHERE job_id {names}
    UNION ALL
    SELECT (SELECT tenant FROM jobs WHERE id = job_id), (ref::json ->> 'size')::bigint FROM artifacts WHERE job_id {names}
    UNION ALL
    SELECT tenant, 256 FROM job_labels WHERE job_id {names}
) AS kept GROUP BY tenant
-- sqlite
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
    UNION ALL
    SELECT tenant, 256 FROM job_labels WHERE job_id {names}
) AS kept GROUP BY tenant

-- stored_bytes_of_tenant: what a tenant keeps stored.
SELECT coalesce(sum(bytes), 0) FROM stored_bytes WHERE tenant = :tenant
