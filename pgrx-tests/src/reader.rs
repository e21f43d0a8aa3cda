//! A reader of a command's output, as the application has one: it decodes what the provider sends, page by
//! page, and has the database capture each page with its cursor.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use postgres::{GenericClient, ToStatement};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::demo::protocol::Tenant;
use crate::random::Random;

pub const STREAMS: [&str; 2] = ["stdout", "stderr"];

/// What a command prints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    /// Text of so many bytes, or a few more, whose characters are of every length.
    pub fn random(random: &mut Random, stdout: usize, stderr: usize) -> Self {
        let mut text = |bytes: usize| {
            let mut text = String::with_capacity(bytes + 4);
            while text.len() < bytes {
                text.push_str(random.pick(&["a", "ß", "€", "😀", "line\n", "Ω", "漢字", "."]));
            }
            text
        };
        Self {
            stdout: text(stdout),
            stderr: text(stderr),
        }
    }

    fn of(&self, stream: &str) -> &str {
        if stream == "stdout" {
            &self.stdout
        } else {
            &self.stderr
        }
    }

    /// The page of at most so many bytes per stream that follows `expected`. At the end of the output the stream
    /// ends, and when both have, the supervisor has left with 0.
    pub fn page(&self, expected: &Value, bytes: usize) -> Page {
        let mut command = expected.clone();
        let mut text = [String::new(), String::new()];
        for (i, stream) in STREAMS.iter().enumerate() {
            let output = self.of(stream).as_bytes();
            let cursor = &expected["streams"][stream];
            let from = cursor["byteOffset"].as_u64().unwrap_or(0) as usize;
            let pending = BASE64_STANDARD
                .decode(cursor["utf8Remainder"].as_str().unwrap_or_default())
                .unwrap_or_default();
            let to = (from + bytes).min(output.len());
            let read = [&pending, &output[from..to]].concat();
            let whole = match std::str::from_utf8(&read) {
                Ok(text) => text.len(),
                Err(error) => error.valid_up_to(),
            };
            text[i] = String::from_utf8_lossy(&read[..whole]).into_owned();
            command["streams"][stream] = json!({
                "byteOffset": to,
                "utf8Remainder": BASE64_STANDARD.encode(&read[whole..]),
                "eof": from == output.len(),
                "exitCode": null,
            });
        }
        let ended = |command: &Value| STREAMS.iter().all(|s| command["streams"][s]["eof"] == true);
        if ended(expected) {
            for stream in STREAMS {
                command["streams"][stream]["exitCode"] = json!(0);
            }
        }
        let [stdout, stderr] = text;
        Page {
            expected: expected.clone(),
            command,
            stdout,
            stderr,
        }
    }

    /// Whether a command's cursors say that all of it has been read.
    pub fn is_read(command: &Value) -> bool {
        STREAMS
            .iter()
            .all(|stream| command["streams"][stream]["exitCode"] == 0)
    }
}

/// A page between two cursors.
#[derive(Clone, Debug)]
pub struct Page {
    pub expected: Value,
    pub command: Value,
    pub stdout: String,
    pub stderr: String,
}

/// What became of a page.
#[derive(Clone, Debug)]
pub struct Captured {
    /// The command as it is recorded now.
    pub command: Value,
    pub captured: bool,
    pub events: Value,
}

/// Where a command is.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    pub schema: &'a str,
    pub tenant: &'a Tenant,
    pub process: Uuid,
}

impl Page {
    pub const CAPTURE: &str = "SELECT command, captured, events
        FROM opengeni_guards.capture_router_output($1, $2, $3, $4, $5, $6, $7, $8, $9)";

    /// Has the page captured: one statement, one round trip.
    pub fn capture(
        &self,
        client: &mut impl GenericClient,
        at: Place<'_>,
    ) -> Result<Captured, postgres::Error> {
        self.capture_prepared(client, Self::CAPTURE, at)
    }

    /// The same by a statement that was prepared before.
    pub fn capture_prepared<S: ToStatement + ?Sized>(
        &self,
        client: &mut impl GenericClient,
        statement: &S,
        at: Place<'_>,
    ) -> Result<Captured, postgres::Error> {
        let row = client.query_one(
            statement,
            &[
                &at.tenant.account,
                &at.tenant.workspace,
                &at.tenant.session,
                &at.process,
                &self.expected,
                &self.command,
                &self.stdout,
                &self.stderr,
                &at.schema,
            ],
        )?;
        Ok(Captured {
            command: row.get(0),
            captured: row.get(1),
            events: row.get(2),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of any size put the output together again.
    #[test]
    fn pages_hold_the_output() {
        let mut random = Random::new(7);
        let output = Output::random(&mut random, 300, 40);
        for bytes in 1..20 {
            let start =
                json!({"byteOffset": 0, "utf8Remainder": "", "eof": false, "exitCode": null});
            let mut command = json!({"streams": {"stdout": start, "stderr": start}});
            let mut read = Output::default();
            while !Output::is_read(&command) {
                let page = output.page(&command, bytes);
                read.stdout += &page.stdout;
                read.stderr += &page.stderr;
                command = page.command;
            }
            assert_eq!(read, output, "{bytes} bytes a page");
        }
    }
}
