-- newest: reads of each tenant the newest jobs that have a label, below an id of the tenant's own.
-- postgresql
SELECT line.tenant, found.job_id
FROM json_to_recordset(CAST(:lines AS json)) AS line(tenant text, below text)
CROSS JOIN LATERAL (
    SELECT job_id FROM job_labels
    WHERE label = :label AND tenant = line.tenant AND job_id < line.below AND job_id >= :least
    ORDER BY job_id DESC LIMIT CAST(:most AS integer)
) AS found
-- sqlite
SELECT found.tenant, found.job_id
FROM json_each(:lines) AS line CROSS JOIN job_labels AS found
    ON found.label = :label AND found.tenant = json_extract(line.value, '$.tenant')
    AND found.job_id < json_extract(line.value, '$.below')
    AND found.job_id >= coalesce((
        SELECT last.job_id FROM job_labels AS last
        WHERE last.label = :label AND last.tenant = json_extract(line.value, '$.tenant')
            AND last.job_id < json_extract(line.value, '$.below') AND last.job_id >= :least
        ORDER BY last.job_id DESC LIMIT 1 OFFSET CAST(:most AS integer) - 1
    ), :least)
