//! Long steps: a spinner on a terminal, plain lines elsewhere, the full output in a log file.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};

/// How much of a failed program's output an error message shows.
const TAIL_LINES: usize = 40;

/// Which of a program's streams a line came from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// One long step.
pub struct Step {
    title: String,
    started: Instant,
    spinner: Option<ProgressBar>,
}

impl Step {
    pub fn start(title: impl Into<String>) -> Step {
        let title = title.into();
        let spinner = std::io::stderr().is_terminal().then(|| {
            let spinner = ProgressBar::new_spinner();
            if let Ok(style) =
                ProgressStyle::with_template("{spinner} {prefix} [{elapsed}] {wide_msg:.dim}")
            {
                spinner.set_style(style);
            }
            spinner.set_prefix(title.clone());
            spinner.enable_steady_tick(Duration::from_millis(120));
            spinner
        });
        if spinner.is_none() {
            eprintln!("· {title} …");
        }
        Step {
            title,
            started: Instant::now(),
            spinner,
        }
    }

    /// Prints a line to stdout without tearing the spinner.
    pub fn print(&self, line: &str) {
        match &self.spinner {
            Some(spinner) => spinner.suspend(|| println!("{line}")),
            None => println!("{line}"),
        }
    }

    /// The step is done: say how long it took.
    pub fn finish(self) {
        let seconds = self.started.elapsed().as_secs_f32();
        if self.spinner.is_some() {
            self.clear();
        }
        eprintln!("✓ {} ({seconds:.1} s)", self.title);
    }

    /// Takes the spinner off the screen.
    pub fn clear(&self) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
    }

    /// Runs a program to its end, with its output in `log` and every line given to `on_line`.
    pub fn stream(
        &self,
        command: &mut Command,
        log: &Path,
        mut on_line: impl FnMut(Stream, &str),
    ) -> Result<ExitStatus> {
        let program = command.get_program().to_string_lossy().into_owned();
        let mut log_file =
            File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {program}"))?;

        // Both streams end in one channel: neither can fill its pipe and stall the program.
        let (sender, receiver) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            forward(stdout, Stream::Stdout, sender.clone());
        }
        if let Some(stderr) = child.stderr.take() {
            forward(stderr, Stream::Stderr, sender.clone());
        }
        drop(sender);
        for (stream, line) in receiver {
            writeln!(log_file, "{line}")?;
            if let Some(spinner) = &self.spinner {
                spinner.set_message(line.trim().to_string());
            }
            on_line(stream, &line);
        }
        Ok(child.wait()?)
    }

    /// Runs a program that must succeed; otherwise the error has the end of its output.
    pub fn run(&self, command: &mut Command, log: &Path) -> Result<()> {
        let mut tail = Tail::default();
        let status = self.stream(command, log, |_, line| tail.push(line))?;
        if !status.success() {
            self.clear();
            bail!(
                "{} failed: {} ended with {status}. The end of its output (all of it is in {}):\n{}",
                self.title,
                command.get_program().to_string_lossy(),
                log.display(),
                tail.text()
            );
        }
        Ok(())
    }
}

/// A step that is one program.
pub fn run_step(title: impl Into<String>, command: &mut Command, log: &Path) -> Result<()> {
    let step = Step::start(title);
    step.run(command, log)?;
    step.finish();
    Ok(())
}

/// The last lines of an output.
#[derive(Default)]
pub struct Tail {
    lines: Vec<String>,
}

impl Tail {
    pub fn push(&mut self, line: &str) {
        if self.lines.len() == TAIL_LINES {
            self.lines.remove(0);
        }
        self.lines.push(line.to_string());
    }

    pub fn text(&self) -> String {
        self.lines.join("\n")
    }
}

fn forward(
    stream: impl Read + Send + 'static,
    name: Stream,
    sender: mpsc::Sender<(Stream, String)>,
) {
    thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            if sender.send((name, line)).is_err() {
                break;
            }
        }
    });
}
