-- @function opengeni_private.current_account_id()
-- The helpers have SQL-standard bodies: names are bound once, here, so no caller's search_path can redirect them, and
-- without a SET clause the planner still inlines them into every policy. NULLIF: a setting once set in a session
-- reads '', not NULL, when it is gone.
CREATE FUNCTION opengeni_private.current_account_id() RETURNS uuid
  LANGUAGE sql STABLE PARALLEL SAFE
  RETURN NULLIF(pg_catalog.current_setting('opengeni.account_id'::text, true), ''::text)::uuid;

-- @function opengeni_private.current_workspace_id()
CREATE FUNCTION opengeni_private.current_workspace_id() RETURNS uuid
  LANGUAGE sql STABLE PARALLEL SAFE
  RETURN NULLIF(pg_catalog.current_setting('opengeni.workspace_id'::text, true), ''::text)::uuid;

-- @function opengeni_private.workspace_rls_visible(uuid, uuid)
CREATE FUNCTION opengeni_private.workspace_rls_visible(account_id uuid, workspace_id uuid) RETURNS boolean
  LANGUAGE sql STABLE PARALLEL SAFE
  RETURN workspace_rls_visible.account_id OPERATOR(pg_catalog.=) opengeni_private.current_account_id()
    AND workspace_rls_visible.workspace_id OPERATOR(pg_catalog.=) opengeni_private.current_workspace_id();
