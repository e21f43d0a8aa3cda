//! The edge against the server itself: our reading of a value and the server's must agree.

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;
    use pgrx::{AnyElement, PgTryBuilder, pg_sys};

    use crate::pg::jsonb::{Document, Value};
    use crate::pg::statement::{Argument, DataSchema, Scope, Sight, Statement, Uuids, Work};
    use crate::pg::{capability, session, value};
    use crate::protocol::command;
    use crate::protocol::json::{Json, Kind};
    use crate::protocol::tables::Type;

    fn document(element: &AnyElement) -> Document<'static> {
        // SAFETY: the tests pass jsonb only; the value outlives the call.
        unsafe { Document::from_datum(element.datum()) }
    }

    fn string(value: Option<Value<'_>>) -> Option<String> {
        Some(String::from_utf8_lossy(&value?.text()?).into_owned())
    }

    #[pg_extern]
    fn ours_text(doc: AnyElement, key: &str) -> Option<String> {
        string(document(&doc).root().get(key))
    }

    #[pg_extern]
    fn ours_has(doc: AnyElement, key: &str) -> bool {
        document(&doc).root().has(key)
    }

    #[pg_extern]
    fn ours_kind(doc: AnyElement) -> &'static str {
        match document(&doc).root().kind() {
            Kind::Null => "null",
            Kind::Boolean => "boolean",
            Kind::Number => "number",
            Kind::String => "string",
            Kind::Array => "array",
            Kind::Object => "object",
        }
    }

    #[pg_extern]
    fn ours_keys(doc: AnyElement) -> Vec<String> {
        let mut keys = Vec::new();
        document(&doc).root().every_member(|key, _| {
            keys.push(String::from_utf8_lossy(key).into_owned());
            true
        });
        keys
    }

    /// Equality inside documents and of whole ones.
    #[pg_extern]
    fn ours_same(a: AnyElement, b: AnyElement) -> bool {
        let inside = document(&a).root().same(document(&b).root());
        let whole = document(&a).same(&document(&b));
        // SAFETY: both are jsonb.
        let column = unsafe { value::equal(Type::Jsonb, pg_sys::InvalidOid, a.datum(), b.datum()) };
        assert_eq!((inside, inside), (whole, column));
        inside
    }

    #[pg_extern]
    fn ours_same_without_streams(a: AnyElement, b: AnyElement) -> bool {
        let (a, b) = (document(&a), document(&b));
        command::same_without_streams(a.root(), b.root())
            .unwrap_or_else(|| a.same_without(&b, "streams"))
    }

    #[pg_extern]
    fn ours_bigint(doc: AnyElement) -> Option<i64> {
        document(&doc).root().as_bigint()
    }

    #[pg_extern]
    fn ours_boolean(doc: AnyElement) -> Option<bool> {
        document(&doc).root().as_boolean()
    }

    #[pg_extern]
    fn ours_is_number(doc: AnyElement, n: i64) -> bool {
        document(&doc).root().is_number(n)
    }

    /// Documents of every kind: short and long headers, more than one stride of offsets, numbers that
    /// lose digits elsewhere, compressed and out-of-line ones.
    fn documents() {
        Spi::run(
            r#"
            CREATE TABLE docs (n serial, doc jsonb);
            INSERT INTO docs (doc) SELECT d::jsonb FROM unnest(ARRAY[
              'null', 'true', 'false', '0', '-0.0', '1', '1.0', '1e400', '-1e-400', '123456789012345678901234567890',
              '123456789012345678901234567891', '9223372036854775807', '-9223372036854775808', '9223372036854775808',
              '10000', '99999999', '100000000', '0.10000000000000000555', '0.1', '1.50', '""', '"supervision"', '"a b"',
              '[]', '{}', '["supervision"]', '["a", ["supervision"]]', '[1, "k7", null]', '{"k7": null}', '{"k7": 1}', '{"k7": 1.0}',
              '{"k7": "x", "streams": {"a": 1}, "supervision": {}}', '{"k7": "x", "streams": {"a": 2}, "supervision": {}}',
              '{"supervision": "k7", "streams": 1}', '{"a": 1, "a": 2, "k7": [1, {"b": 1e3}]}', '{"a": 2, "k7": [1.0, {"b": 1000}]}',
              '" 12 "', '"+7"', '"0x10"', '"1_000"', '"off"', '" yes "', '"tr"', '"12a"', '"9223372036854775808"', '"é"', '{"é": "ü", "k7": "ñ"}'
            ]) d;
            INSERT INTO docs (doc) SELECT jsonb_object_agg('k' || g, g * s) FROM generate_series(1, 200) g, generate_series(1, 3) s GROUP BY s;
            INSERT INTO docs (doc) SELECT jsonb_object_agg('k' || g, repeat(md5(g::text), 3 * g)) FROM generate_series(1, 90) g;
            INSERT INTO docs (doc) SELECT jsonb_build_object('k7', repeat('a', 100000), 'streams', jsonb_agg(g)) FROM generate_series(1, 90) g;
            INSERT INTO docs (doc) SELECT (repeat('[', 5000) || repeat(']', 5000))::jsonb;
            INSERT INTO docs (doc) SELECT jsonb_build_object('k' || g, jsonb_build_object('k7', g::numeric / 8), 'streams', g) FROM generate_series(1, 60) g;
            "#,
        )
        .unwrap();
    }

    /// How many rows of `query` there are: those on which ours and the server's answer differ.
    fn disagreements(query: &str) -> i64 {
        documents();
        let sql = format!("SELECT count(*) FROM {query}");
        Spi::get_one::<i64>(&sql).unwrap().unwrap()
    }

    #[pg_test]
    fn members_are_read_as_the_server_reads_them() {
        assert_eq!(
            disagreements(
                "docs, unnest(ARRAY['k7', 'k8', 'k200', 'supervision', 'streams', '', 'é', 'a']) k
                 WHERE (tests.ours_text(doc, k) IS DISTINCT FROM CASE WHEN jsonb_typeof(doc) = 'object' THEN doc ->> k END)
                    OR tests.ours_has(doc, k) IS DISTINCT FROM (doc ? k)"
            ),
            0
        );
    }

    #[pg_test]
    fn kinds_and_keys_are_the_servers() {
        assert_eq!(
            disagreements(
                "docs WHERE tests.ours_kind(doc) <> jsonb_typeof(doc)
                    OR tests.ours_keys(doc) <> CASE WHEN jsonb_typeof(doc) = 'object'
                         THEN ARRAY(SELECT jsonb_object_keys(doc)) ELSE '{}' END"
            ),
            0
        );
    }

    #[pg_test]
    fn equality_is_the_servers() {
        assert_eq!(
            disagreements(
                "docs a, docs b WHERE tests.ours_same(a.doc, b.doc) IS DISTINCT FROM (a.doc = b.doc)"
            ),
            0
        );
    }

    #[pg_test]
    fn commands_without_streams_compare_as_the_servers_operators_do() {
        assert_eq!(
            disagreements(
                "docs a, docs b WHERE jsonb_typeof(a.doc) IN ('object', 'array') AND jsonb_typeof(b.doc) IN ('object', 'array')
                   AND tests.ours_same_without_streams(a.doc, b.doc) IS DISTINCT FROM (a.doc - 'streams' = b.doc - 'streams')"
            ),
            0
        );
    }

    #[pg_test(error = "cannot delete from scalar")]
    fn a_scalar_command_ends_as_the_servers_operator_ends() {
        Spi::run("SELECT tests.ours_same_without_streams('\"supervision\"'::jsonb, '\"supervision\"'::jsonb)").unwrap();
    }

    /// The casts are asked of the server, whatever its major's input functions accept.
    #[pg_test]
    fn casts_are_the_servers() {
        documents();
        Spi::run(
            "CREATE FUNCTION tests.try_bigint(t text) RETURNS bigint LANGUAGE plpgsql AS
               $$ BEGIN RETURN t::bigint; EXCEPTION WHEN data_exception THEN RETURN NULL; END $$;
             CREATE FUNCTION tests.try_boolean(t text) RETURNS boolean LANGUAGE plpgsql AS
               $$ BEGIN RETURN t::boolean; EXCEPTION WHEN data_exception THEN RETURN NULL; END $$",
        )
        .unwrap();
        let wrong = Spi::get_one::<i64>(
            "SELECT count(*) FROM docs WHERE tests.ours_bigint(doc) IS DISTINCT FROM tests.try_bigint(doc #>> '{}')
                OR tests.ours_boolean(doc) IS DISTINCT FROM tests.try_boolean(doc #>> '{}')",
        );
        assert_eq!(wrong, Ok(Some(0)));
    }

    #[pg_test]
    fn whole_numbers_are_recognised() {
        assert_eq!(
            disagreements(
                "docs, unnest(ARRAY[0, 1, 1000, 10000, 99999999, 100000000, 9223372036854775807, -9223372036854775807]) wanted
                 WHERE tests.ours_is_number(doc, wanted) IS DISTINCT FROM
                   CASE WHEN jsonb_typeof(doc) = 'number' THEN doc::numeric = wanted ELSE false END"
            ),
            0
        );
    }

    #[pg_test]
    fn settings_read_as_current_setting_reads_them() {
        let read = |name| session::setting(name).map(|s| s.to_string_lossy().into_owned());
        assert_eq!(read(c"opengeni.never_set"), None);
        Spi::run("SELECT set_config('opengeni.some_setting', 'x', true)").unwrap();
        assert_eq!(read(c"opengeni.some_setting").as_deref(), Some("x"));
    }

    #[pg_test]
    fn a_transaction_that_is_still_to_come_is_unfinished() {
        let mine: i64 = Spi::get_one("SELECT pg_current_xact_id()::text::bigint")
            .unwrap()
            .unwrap();
        assert_eq!(session::top_transaction_id(), Some(mine as u64));
        assert!(!session::is_foreign_and_unfinished(mine as u64));
        assert!(session::is_foreign_and_unfinished(mine as u64 + 1_000_000));
        assert!(!session::is_foreign_and_unfinished(3));
    }

    static WRONG: Statement = Statement {
        sql: "SELECT nothing_of_that_name FROM {schema}.sandbox_leases",
        parameters: &[],
    };
    static ADD: Statement = Statement {
        sql: "INSERT INTO {schema}.sandbox_leases (n) VALUES ($1)",
        parameters: &[Type::Integer],
    };
    static LIST: Statement = Statement {
        sql: "SELECT string_agg(n::text, ' ' ORDER BY n) FROM {schema}.sandbox_leases",
        parameters: &[],
    };
    static IDS: Statement = Statement {
        sql: "SELECT array_agg(md5(i::text)::uuid ORDER BY i) FROM generate_series(1, $1) i",
        parameters: &[Type::Integer],
    };
    static NTH: Statement = Statement {
        sql: "SELECT string_agg((SELECT i::text FROM generate_series(1, 9) i WHERE md5(i::text)::uuid = id), ' ')
                FROM unnest($1) id",
        parameters: &[Type::UuidArray],
    };
    static LEASES: Scope = Scope {
        tables: &[c"sandbox_leases"],
        sight: Sight::Fleet,
        by_index: false,
    };

    fn table(schema: &str) -> DataSchema {
        Spi::run(&format!(
            "CREATE SCHEMA \"{schema}\"; CREATE TABLE \"{schema}\".sandbox_leases (n integer CHECK (n < 5))"
        ))
        .unwrap();
        DataSchema::find(Some(schema))
    }

    fn text(work: &Work, statement: &'static Statement, arguments: &[Argument<'_>]) -> String {
        let [value] = work.row::<1>(statement, arguments).unwrap();
        // SAFETY: the statement returns text that is not NULL.
        unsafe { String::from_datum(value.unwrap(), false) }.unwrap()
    }

    #[pg_test]
    fn what_an_attempt_refuses_is_undone() {
        let schema = table("Odd name");
        Work::on(schema, &LEASES, |work| {
            assert!(
                work.attempt(|| work.run(&ADD, &[Argument::Integer(1)]))
                    .is_ok()
            );
            let refused = work.attempt(|| {
                work.run(&ADD, &[Argument::Integer(2)]);
                work.run(&ADD, &[Argument::Integer(5)])
            });
            let message = refused.err().unwrap().message.to_string_lossy();
            assert!(message.contains("violates check constraint"), "{message}");
            work.run(&ADD, &[Argument::Integer(3)]);
            assert_eq!(text(work, &LIST, &[]), "1 3");
        });
    }

    #[pg_test(error = "column \"nothing_of_that_name\" does not exist")]
    fn what_is_no_refusal_passes_through_an_attempt() {
        let schema = table("plain");
        Work::on(schema, &LEASES, |work| {
            let _ = work.attempt(|| work.run(&WRONG, &[]));
        });
    }

    #[pg_test]
    fn halves_keep_their_order() {
        let schema = table("halves");
        Work::on(schema, &LEASES, |work| {
            let [ids] = work.row::<1>(&IDS, &[Argument::Integer(5)]).unwrap();
            let ids = Uuids::of(ids.unwrap());
            let [first, second] = ids.halves();
            assert_eq!((ids.len(), first.len(), second.len()), (5, 2, 3));
            assert_eq!(text(work, &NTH, &[first.argument()]), "1 2");
            assert_eq!(text(work, &NTH, &[second.argument()]), "3 4 5");
        });
    }

    #[pg_test]
    fn a_capability_ends_with_what_opened_it() {
        let (one, other) = (pg_sys::Oid::from(1), pg_sys::Oid::from(2));
        capability::with(one, || {
            assert!(capability::is_open(one) && !capability::is_open(other));
            capability::with(one, || assert!(capability::is_open(one)));
            assert!(
                capability::is_open(one),
                "a nested one leaves the outer open"
            );
            // SAFETY: a subtransaction that is rolled back at once.
            unsafe { pg_sys::BeginInternalSubTransaction(std::ptr::null()) };
            let caught = PgTryBuilder::new(|| capability::with(other, || error!("stop")))
                .catch_others(|_| true)
                .execute();
            assert!(
                caught && capability::is_open(other),
                "an error by itself closes nothing"
            );
            // SAFETY: as above.
            unsafe { pg_sys::RollbackAndReleaseCurrentSubTransaction() };
            assert!(capability::is_open(one) && !capability::is_open(other));
        });
        assert!(!capability::any_is_open());
    }
}
