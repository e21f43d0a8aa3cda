-- The trigger functions run as the caller and the rest checks its caller, so that everybody may call them,
-- whatever default privileges say.
GRANT USAGE ON SCHEMA opengeni_guards TO PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA opengeni_guards TO PUBLIC;
