SELECT owned.owner_state, count(*), count(*) FILTER (WHERE owned.terminal)
FROM (
  SELECT CASE WHEN p.owner_actor_kind = 'direct' THEN 'direct' ELSE coalesce(turn.status, 'missing') END AS owner_state,
    p.owner_actor_kind = 'direct' OR attempt.state = 'closed' AS terminal
  FROM {schema}.sandbox_retained_processes p
  LEFT JOIN {schema}.session_turns turn
    ON turn.workspace_id = p.workspace_id AND turn.id = p.owner_turn_id
  LEFT JOIN {schema}.session_turn_attempts attempt
    ON attempt.workspace_id = p.workspace_id AND attempt.id = p.owner_attempt_id
  WHERE p.state = 'active' AND p.owner_actor_kind IN ('direct', 'turn')
) owned
GROUP BY owned.owner_state
