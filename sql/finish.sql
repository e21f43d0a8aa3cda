-- The trigger functions run as the caller and the rest checks its caller, so that everybody may call them,
-- whatever default privileges say.
GRANT USAGE ON SCHEMA opengeni_guards TO PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA opengeni_guards TO PUBLIC;

-- Tables that are there already get their guards at once, unless opengeni_guards.bind_on_create is off.
CREATE FUNCTION opengeni_guards.bind_on_create() RETURNS void
  LANGUAGE c AS 'MODULE_PATHNAME', 'bind_on_create_wrapper';
SELECT opengeni_guards.bind_on_create();
DROP FUNCTION opengeni_guards.bind_on_create();
