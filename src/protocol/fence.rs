//! Where a membership fence belongs in the application's functions. Bodies are compared as the parser would
//! read them: by words and signs, not by layout, comments or case.

use std::ops::Range;

/// One of the two functions that change who belongs to what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fenced {
    Enrollment,
    Workspace,
}

/// What becomes of a function's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Present,
    Body(String),
    /// Not the body that the fence is for.
    Drift,
}

impl Fenced {
    /// The function, with its argument types.
    pub fn signature(self) -> &'static str {
        match self {
            Fenced::Enrollment => {
                "finalize_scoped_enrollment(uuid, uuid, text, text, boolean, boolean, text, text, text, boolean)"
            }
            Fenced::Workspace => "prepare_workspace_membership_removal_settlements(jsonb)",
        }
    }

    /// As the message of its drift calls it.
    pub fn title(self) -> &'static str {
        match self {
            Fenced::Enrollment => "enrollment membership",
            Fenced::Workspace => "workspace membership preparation",
        }
    }

    fn call(self) -> &'static str {
        match self {
            Fenced::Enrollment => {
                "PERFORM opengeni_guards.enrollment_membership_fence(p_account_id);"
            }
            Fenced::Workspace => {
                "PERFORM opengeni_guards.workspace_membership_fence(account_id_value);"
            }
        }
    }

    /// The same written out, as the application's migration puts it.
    fn inlined(self) -> String {
        let (account, what) = match self {
            Fenced::Enrollment => ("p_account_id", "enrollment"),
            Fenced::Workspace => ("account_id_value", "workspace"),
        };
        format!(
            "IF NOT pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended(
               'organization-membership:' || {account}::text, 0)) THEN
               RAISE EXCEPTION '{what} membership is changing; retry the transaction' USING ERRCODE = '55P03';
             END IF;"
        )
    }

    /// What stands before the fence, what after it, and what else an unfenced body has there.
    fn around(self) -> [&'static str; 3] {
        match self {
            Fenced::Enrollment => [
                "ELSIF p_scope = 'user' THEN",
                "SELECT membership.* INTO STRICT owner_membership
                 FROM organization_memberships membership
                 WHERE membership.account_id = p_account_id AND membership.subject_id = caller_subject
                   AND membership.status = 'active' AND membership.revoked_at IS NULL",
                "FOR SHARE",
            ],
            Fenced::Workspace => [
                "",
                "PERFORM 1 FROM workspaces workspace
                 WHERE workspace.account_id = account_id_value AND workspace.id = workspace_id_value;
                 IF NOT FOUND THEN",
                "",
            ],
        }
    }

    /// Puts the fence into a body, unless it stands there.
    pub fn install(self, body: &str) -> Change {
        let [before, after, lock] = self.around();
        // The select ends where its lock would begin.
        let end = if lock.is_empty() { "" } else { ";" };
        let found = tokens(body);
        let all = |text: &str| occurrences(&found, &tokens(text));
        let fenced = all(&format!("{before} {} {after} {end}", self.call())).len()
            + all(&format!("{before} {} {after} {end}", self.inlined())).len();
        let unfenced = all(&format!("{before} {after} {lock} {end}"));
        // A fence that stands before its statement leaves that statement as it was.
        let inside = if before.is_empty() { fenced } else { 0 };
        match (fenced, unfenced.len() - inside.min(unfenced.len())) {
            (1, 0) => Change::Present,
            (0, 1) => {
                let at = unfenced[0] + tokens(before).len();
                let mut text = String::with_capacity(body.len() + 128);
                let start = found[at].0.start;
                text.push_str(&body[..start]);
                text.push_str(self.call());
                text.push('\n');
                // As far in as the statement that follows.
                let line = body[..start].rfind('\n').map_or(0, |newline| newline + 1);
                let indent = &body[line..start];
                text.push_str(if indent.trim().is_empty() { indent } else { "" });
                let last = found[at + tokens(after).len() - 1].0.end;
                let lock = tokens(lock).len();
                let resumed = found[at + tokens(after).len() + lock - 1].0.end;
                text.push_str(&body[start..last]);
                text.push_str(&body[resumed..]);
                Change::Body(text)
            }
            _ => Change::Drift,
        }
    }
}

type Token = (Range<usize>, String);

/// Where `needle` begins in `hay`.
fn occurrences(hay: &[Token], needle: &[Token]) -> Vec<usize> {
    let same = |window: &[Token]| window.iter().zip(needle).all(|(a, b)| a.1 == b.1);
    hay.windows(needle.len().max(1))
        .enumerate()
        .filter(|(_, window)| same(window))
        .map(|(at, _)| at)
        .collect()
}

/// A body's words and signs: names folded to lower case, quoted things as they are, layout and comments gone.
fn tokens(text: &str) -> Vec<Token> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        let length = match bytes[at] {
            b if b.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            b'-' if rest.starts_with("--") => {
                at += rest.find('\n').unwrap_or(rest.len());
                continue;
            }
            b'/' if rest.starts_with("/*") => {
                at += comment(rest);
                continue;
            }
            quote @ (b'\'' | b'"') => quoted(rest, quote, false),
            b'e' | b'E' if bytes.get(at + 1) == Some(&b'\'') => 1 + quoted(&rest[1..], b'\'', true),
            b'$' => dollar_quoted(rest).unwrap_or(1),
            b if is_name(b) => rest
                .bytes()
                .take_while(|b| is_name(*b) || *b == b'$')
                .count(),
            _ => 1,
        };
        let token = &rest[..length];
        let word = bytes[at] != b'\'' && bytes[at] != b'"' && bytes[at] != b'$';
        let escape = word && token.contains('\'');
        found.push((
            at..at + length,
            if word && !escape {
                token.to_ascii_lowercase()
            } else {
                token.to_owned()
            },
        ));
        at += length;
    }
    found
}

fn is_name(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_' || b >= 0x80
}

/// The length of a comment, nested ones included.
fn comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

/// The length of a string or quoted name; a doubled quote, or one behind a backslash, does not end it.
fn quoted(text: &str, quote: u8, backslashes: bool) -> usize {
    let bytes = text.as_bytes();
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if backslashes => at += 2,
            b if b == quote && bytes.get(at + 1) == Some(&quote) => at += 2,
            b if b == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The length of a `$tag$ … $tag$` string, where one begins.
fn dollar_quoted(text: &str) -> Option<usize> {
    let tag = text[1..].find('$').map(|end| &text[..end + 2])?;
    tag[1..tag.len() - 1].bytes().all(is_name).then_some(())?;
    let end = text[tag.len()..].find(tag);
    Some(end.map_or(text.len(), |end| end + 2 * tag.len()))
}
