SELECT l.backend,
  CASE
    WHEN now() - l.expires_at < interval '5 minutes' THEN 'lt_5m'
    WHEN now() - l.expires_at < interval '1 hour' THEN '5m_1h'
    WHEN now() - l.expires_at < interval '1 day' THEN '1h_1d'
    ELSE 'gte_1d'
  END AS age_bucket,
  count(*)
FROM {schema}.sandbox_leases l
WHERE l.liveness = 'draining' AND l.expires_at < now()
GROUP BY 1, 2
