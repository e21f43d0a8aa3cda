SELECT p.account_id, p.workspace_id, p.session_id, p.id, p.reconcile_claim_id,
  CASE WHEN p.owner_actor_kind = 'direct' THEN 'direct' ELSE coalesce(turn.status, 'missing') END,
  attempt.outcome
FROM unnest($1) WITH ORDINALITY AS due (id, place)
JOIN {schema}.sandbox_retained_processes p ON p.id = due.id
LEFT JOIN {schema}.session_turns turn
  ON turn.workspace_id = p.workspace_id AND turn.id = p.owner_turn_id
LEFT JOIN {schema}.session_turn_attempts attempt
  ON attempt.workspace_id = p.workspace_id AND attempt.id = p.owner_attempt_id
WHERE p.reconcile_claim_id = $2
ORDER BY due.place
