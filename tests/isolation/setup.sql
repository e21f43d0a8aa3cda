-- Runs once, as a superuser, in the suite's database after CREATE EXTENSION opengeni_guards.
\ir ../fixtures/roles.sql
SELECT count(*) FROM opengeni_guards.provision('public', 'regress_owner');
SELECT opengeni_guards.grant_usage('regress_app', 'public');
\ir ../fixtures/fixture.sql

-- Takes away every row, supervised commands too, so that each permutation begins alike.
CREATE PROCEDURE fixture.clear() LANGUAGE plpgsql SECURITY DEFINER SET session_replication_role = replica AS $$
BEGIN
  DELETE FROM public.sandbox_retained_processes;
  DELETE FROM public.sandbox_workspace_mutation_admissions;
  DELETE FROM public.sandbox_lease_holders;
  DELETE FROM public.sandbox_leases;
  DELETE FROM public.sessions;
  DELETE FROM fixture.noted;
END $$;

-- Remembers the transaction id under which the session of that application name runs. Privileged: one role may
-- not look into the sessions of another.
CREATE TABLE fixture.noted (id xid NOT NULL);
GRANT SELECT ON fixture.noted TO PUBLIC;
CREATE PROCEDURE fixture.note(application text) LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  INSERT INTO fixture.noted SELECT backend_xid FROM pg_stat_activity WHERE application_name = application;
  ASSERT FOUND, 'no such session';
END $$;

-- A legacy row that names the remembered transaction as the one that retained it.
CREATE PROCEDURE fixture.forge(name text) LANGUAGE plpgsql AS $$
DECLARE
  overrides jsonb;
BEGIN
  SELECT jsonb_build_object('supervision_retention_xid', id) INTO STRICT overrides FROM fixture.noted;
  CALL fixture.process(name, false, overrides);
END $$;
