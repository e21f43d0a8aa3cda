UPDATE {schema}.sandbox_checkpoint_artifacts a
SET state = CASE WHEN $3 THEN 'deleted' ELSE 'delete_failed' END,
  deleted_at = CASE WHEN $3 THEN now() END,
  delete_after = CASE WHEN NOT $3 THEN now() + greatest($5, 1000) * interval '1 millisecond' END,
  delete_claim_id = NULL,
  delete_claimed_at = NULL,
  last_delete_error = CASE WHEN NOT $3 THEN left(coalesce($4, 'unknown'), 4000) END,
  updated_at = now()
WHERE a.id = $1 AND a.state = 'deleting' AND a.delete_claim_id = $2
