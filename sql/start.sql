-- A script never runs with a library that is older than itself.
LOAD 'MODULE_PATHNAME';
DO $library$
BEGIN
  IF pg_catalog.string_to_array(pg_catalog.current_setting('opengeni_guards.library_version', true), '.')::integer[]
     OPERATOR(pg_catalog.>=) '{0,2,0}'::integer[] IS NOT TRUE
  THEN
    RAISE EXCEPTION 'opengeni_guards 0.2.0 needs its library, and an older one is loaded'
      USING ERRCODE = '55000', HINT = 'Install the library of this release and reconnect.';
  END IF;
END
$library$;

-- Names and documents are read as UTF-8.
DO $encoding$
BEGIN
  IF pg_catalog.getdatabaseencoding() OPERATOR(pg_catalog.<>) 'UTF8' THEN
    RAISE EXCEPTION 'opengeni_guards needs a database with encoding UTF8, not %', pg_catalog.getdatabaseencoding()
      USING ERRCODE = '0A000';
  END IF;
END
$encoding$;
