//! Results of single tests, as the test programs print them and as we do.

use std::fmt;
use std::ops::AddAssign;

/// How one test ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    Passed,
    Failed,
    Skipped,
}

impl fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Outcome::Passed => "ok  ",
            Outcome::Failed => "FAIL",
            Outcome::Skipped => "skip",
        })
    }
}

/// How many tests ended how.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    pub passed: u32,
    pub failed: u32,
    pub skipped: u32,
}

impl Counts {
    pub fn of(outcome: Outcome) -> Counts {
        let mut counts = Counts::default();
        match outcome {
            Outcome::Passed => counts.passed = 1,
            Outcome::Failed => counts.failed = 1,
            Outcome::Skipped => counts.skipped = 1,
        }
        counts
    }

    pub fn is_empty(&self) -> bool {
        *self == Counts::default()
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(formatter, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

/// Reads a line of libtest or libtest-mimic about one test: `test name ... ok`.
pub fn libtest_line(line: &str) -> Option<(Outcome, &str)> {
    let (name, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    // `ok <0.1s>` with report times, `ignored, because`.
    let word = result.split([' ', ',']).next()?;
    let outcome = match word {
        "ok" => Outcome::Passed,
        "FAILED" => Outcome::Failed,
        "ignored" => Outcome::Skipped,
        _ => return None,
    };
    // libtest-mimic pads the names to one width.
    Some((outcome, name.trim_end()))
}

/// Reads libtest's last line: `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
pub fn libtest_summary(line: &str) -> Option<Counts> {
    let (_, numbers) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut counts = Counts::default();
    for part in numbers.split(';') {
        let mut words = part.split_whitespace();
        let (Some(number), Some(what)) = (words.next(), words.next()) else {
            continue;
        };
        let Ok(number) = number.parse() else {
            continue;
        };
        match what {
            "passed" => counts.passed = number,
            "failed" => counts.failed = number,
            "ignored" => counts.skipped = number,
            _ => {}
        }
    }
    Some(counts)
}

/// Reads a line of pg_regress about one test: `test name ... ok 12 ms` and, inside a parallel
/// group, the same without `test`; TAP from PostgreSQL 16 on: `ok 1 - name 12 ms`, `not ok 1 + name`.
pub fn pg_regress_line(line: &str) -> Option<(Outcome, &str)> {
    let (outcome, rest) = if let Some(rest) = line.strip_prefix("ok ") {
        (Outcome::Passed, Some(rest))
    } else if let Some(rest) = line.strip_prefix("not ok ") {
        (Outcome::Failed, Some(rest))
    } else {
        (Outcome::Failed, None)
    };
    if let Some(rest) = rest {
        let mut words = rest.split_whitespace();
        words.next()?.parse::<u32>().ok()?;
        words.next().filter(|sign| ["-", "+"].contains(sign))?;
        return words.next().map(|name| (outcome, name));
    }

    let (name, result) = line.split_once(" ... ")?;
    let name = name.strip_prefix("test ").unwrap_or(name).trim();
    let outcome = match result.split_whitespace().next()? {
        "ok" => Outcome::Passed,
        "FAILED" => Outcome::Failed,
        "failed" => Outcome::Skipped, // `failed (ignored)`
        _ => return None,
    };
    (!name.is_empty() && !name.contains(' ')).then_some((outcome, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_libtest() {
        assert_eq!(
            libtest_line("test protocol::tests::it_is - should panic ... ok"),
            Some((Outcome::Passed, "protocol::tests::it_is - should panic"))
        );
        assert_eq!(
            libtest_line("test [cases] late ... FAILED"),
            Some((Outcome::Failed, "[cases] late"))
        );
        assert_eq!(
            libtest_line("test slow ... ignored, takes an hour"),
            Some((Outcome::Skipped, "slow"))
        );
        assert_eq!(libtest_line("test slow ... "), None);
        assert_eq!(libtest_line("running 3 tests"), None);
    }

    #[test]
    fn summary_of_libtest() {
        let line = "test result: FAILED. 12 passed; 1 failed; 2 ignored; 0 measured; \
                    7 filtered out; finished in 0.31s";
        assert_eq!(
            libtest_summary(line),
            Some(Counts {
                passed: 12,
                failed: 1,
                skipped: 2
            })
        );
        assert_eq!(libtest_summary("test name ... ok"), None);
    }

    #[test]
    fn lines_of_pg_regress() {
        for line in [
            "test guards                       ... ok          23 ms",
            "     guards                       ... ok          23 ms",
            "ok 1         - guards                                     23 ms",
            "ok 12        + guards                                     23 ms",
        ] {
            assert_eq!(
                pg_regress_line(line),
                Some((Outcome::Passed, "guards")),
                "{line}"
            );
        }
        for line in [
            "test guards                       ... FAILED       23 ms",
            "test guards                       ... FAILED (test process exited with exit code 2)",
            "not ok 3     - guards                                     23 ms",
        ] {
            assert_eq!(
                pg_regress_line(line),
                Some((Outcome::Failed, "guards")),
                "{line}"
            );
        }
        for line in [
            "parallel group (2 tests):  guards queues",
            "ok 1 test passed",
            "# using postmaster on /tmp, port 5432",
            " All 2 tests passed. ",
            "1..2",
        ] {
            assert_eq!(pg_regress_line(line), None, "{line}");
        }
    }
}
