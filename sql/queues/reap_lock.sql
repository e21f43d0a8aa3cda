-- Leases before holders, as the application locks them, and in the order of their ids. FOR UPDATE waits for whoever is
-- inserting a holder.
SELECT count(*)
FROM (
  SELECT 1
  FROM unnest($1) AS due (id)
  JOIN {schema}.sandbox_leases l ON l.id = due.id
  ORDER BY l.id
  FOR UPDATE OF l
) locked
