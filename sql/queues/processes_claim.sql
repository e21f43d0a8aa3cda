-- A process whose owner is still at work is put off, so that it does not stand at the head of the queue for ever.
UPDATE {schema}.sandbox_retained_processes p
SET reconcile_after = now() + CASE WHEN judged.claimed THEN $3 * interval '1 millisecond' ELSE interval '30 seconds' END,
  reconcile_claim_id = CASE WHEN judged.claimed THEN $2 END,
  reconcile_claimed_at = CASE WHEN judged.claimed THEN now() END,
  reconcile_attempts = p.reconcile_attempts + judged.claimed::integer,
  last_reconcile_outcome = CASE WHEN judged.claimed THEN 'claimed' ELSE 'owner_active' END
FROM (
  SELECT owned.id, (owned.owner_actor_kind = 'direct' OR attempt.state = 'closed') IS TRUE AS claimed
  FROM unnest($1) AS due (id)
  JOIN {schema}.sandbox_retained_processes owned ON owned.id = due.id
  LEFT JOIN {schema}.session_turn_attempts attempt
    ON attempt.workspace_id = owned.workspace_id AND attempt.id = owned.owner_attempt_id
) judged
WHERE p.id = judged.id
