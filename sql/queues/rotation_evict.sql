-- Viewers cannot write and may come back to the successor. Everybody else leaves by their own release.
DELETE FROM {schema}.sandbox_lease_holders h
USING unnest($1) AS due (id)
WHERE h.lease_id = due.id AND h.kind = 'viewer'
