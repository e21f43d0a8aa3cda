SELECT a.state, count(*)
FROM {schema}.sandbox_checkpoint_artifacts a
GROUP BY a.state
ORDER BY a.state
