-- Runs once, as a superuser, in the suite's database after CREATE EXTENSION opengeni_guards.
\ir ../fixtures/roles.sql
SELECT count(*) FROM opengeni_guards.provision('public', 'regress_owner');
SELECT opengeni_guards.grant_usage('regress_app', 'public');
\ir ../fixtures/fixture.sql
