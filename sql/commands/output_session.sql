SELECT s.id
FROM {schema}.sessions s
WHERE s.account_id = $1 AND s.workspace_id = $2 AND s.id = $3
FOR NO KEY UPDATE
