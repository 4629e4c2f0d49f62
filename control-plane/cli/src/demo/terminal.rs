//! Output of the demo: headlines and one line per second, on stdout, in order of their start.
//!
//! The line of a second waits until every request of that second has ended, so its numbers are final. Colour
//! only on a terminal without `NO_COLOR`.

use std::env;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;

use tokio::sync::mpsc;

use super::fault::Share;
use super::ledger::{LAYERS, Ledger, Second, Sums};
use super::report;

/// Longest bar; a longer one is cut and marked.
const BAR: usize = 40;

/// Sends lines to the terminal; any part of the demo may hold one.
#[derive(Clone, Debug)]
pub(super) struct Announcer {
    lines: mpsc::UnboundedSender<Line>,
}

/// Prints the lines of the announcers.
#[derive(Debug)]
pub(super) struct Terminal {
    lines: mpsc::UnboundedReceiver<Line>,
    ledger: Arc<Ledger>,
    colour: bool,
}

#[derive(Debug)]
enum Line {
    Text(String),
    Headline(String),
    Columns,
    Second { stretch: usize, second: usize, clock: u64 },
    Closing { stretch: usize, words: fn(&Sums) -> String },
}

impl Announcer {
    pub(super) fn text(&self, text: impl Into<String>) {
        self.tell(Line::Text(text.into()));
    }

    pub(super) fn headline(&self, text: impl Into<String>) {
        self.tell(Line::Headline(text.into()));
    }

    /// Headings of the columns.
    pub(super) fn columns(&self) {
        self.tell(Line::Columns);
    }

    /// Numbers of a second, `clock` seconds after the start of the demo.
    pub(super) fn second(&self, stretch: usize, second: usize, clock: u64) {
        self.tell(Line::Second { stretch, second, clock });
    }

    /// Result of a stretch, after the line of its last second.
    pub(super) fn closing(&self, stretch: usize, words: fn(&Sums) -> String) {
        self.tell(Line::Closing { stretch, words });
    }

    pub(super) fn fault(&self, share: Share) {
        self.text(format!("  fault switch: the demo's service `stock` now fails {share} of the calls to it"));
    }

    fn tell(&self, line: Line) {
        // The terminal is gone at the end of the demo.
        let _ = self.lines.send(line);
    }
}

impl Terminal {
    pub(super) fn new(ledger: Arc<Ledger>) -> (Announcer, Self) {
        let (sender, lines) = mpsc::unbounded_channel();
        let colour =
            io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let terminal = Self { lines, ledger, colour };
        (Announcer { lines: sender }, terminal)
    }

    /// Prints until every announcer is dropped.
    pub(super) async fn run(mut self) -> io::Result<()> {
        while let Some(line) = self.lines.recv().await {
            let text = match line {
                Line::Text(text) => text,
                Line::Headline(text) => format!("\n{}", self.painted("1", &text)),
                Line::Columns => {
                    format!("   time  requests   success   attempts at {} per request", LAYERS[3])
                }
                Line::Second { stretch, second, clock } => {
                    self.figures(clock, &self.ledger.settled(stretch, second).await)
                }
                Line::Closing { stretch, words } => words(&self.ledger.sums(stretch)),
            };
            let mut out = io::stdout().lock();
            writeln!(out, "{text}")?;
            out.flush()?;
        }
        Ok(())
    }

    fn figures(&self, clock: u64, second: &Second) -> String {
        let (Some(amplification), Some(success)) =
            (report::bottom_amplification(second), report::success_percent(second))
        else {
            return format!("{clock:5} s  {:>8}", 0);
        };
        let success = self.painted(if success < 98.0 { "31" } else { "32" }, &format!("{success:6.1} %"));
        let bar = self.painted(if amplification < 2.0 { "32" } else { "31" }, &bar(amplification));
        let started = second.started;
        format!("{clock:5} s  {started:>8}  {success}   {amplification:5.1} {bar}")
    }

    fn painted(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// One cell per attempt.
fn bar(amplification: f64) -> String {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a few attempts per request, never negative; the cast saturates"
    )]
    let cells = amplification.round() as usize;
    let rest = if cells > BAR { "…" } else { "" };
    format!("{}{rest}", "█".repeat(cells.min(BAR)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(started: u64, succeeded: u64, at_bottom: u64) -> String {
        let (_, mut terminal) = Terminal::new(Arc::default());
        terminal.colour = false;
        let second =
            Second { started, succeeded, ended: started, arrivals: [started, started, started, at_bottom] };
        terminal.figures(7, &second)
    }

    #[test]
    fn a_line_shows_requests_success_and_a_cell_per_attempt() {
        assert_eq!(line(40, 40, 40), "    7 s        40   100.0 %     1.0 █");
        assert_eq!(line(10, 5, 30), "    7 s        10    50.0 %     3.0 ███");
        assert_eq!(line(0, 0, 0), "    7 s         0");
    }

    #[test]
    fn too_long_bar_is_cut_and_marked() {
        assert_eq!(bar(1000.0).chars().count(), BAR + 1);
        assert!(bar(1000.0).ends_with('…'));
    }
}
