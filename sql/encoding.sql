-- Names and documents are read as UTF-8.
DO $encoding$
BEGIN
  IF pg_catalog.getdatabaseencoding() OPERATOR(pg_catalog.<>) 'UTF8' THEN
    RAISE EXCEPTION 'opengeni_guards needs a database with encoding UTF8, not %', pg_catalog.getdatabaseencoding()
      USING ERRCODE = '0A000';
  END IF;
END
$encoding$;
