//! `damper reference`: every command with its arguments as Markdown, for `cargo xtask docs`.
//!
//! It says what `--help` says, so that a page of documentation can not contradict it.

use std::fmt::Write as _;

use clap::{Arg, Command, CommandFactory as _};

use super::Cli;
use crate::error::CliError;
use crate::output;

const HEAD: &str = "# Command reference

Every command of `damper`, its arguments and settings, made from its own help by `cargo xtask docs`; do not edit.

Clients find the server by `--server` or `DAMPER_SERVER`. Settings of `damper serve` are taken from the flag, else \
the environment, else the file named by `--config`, else the default; in the file they have the flag's name with `_` \
for `-`, and a key that is not known is an error.
";

/// Prints the reference.
pub(crate) fn run() -> Result<(), CliError> {
    let mut damper = Cli::command();
    damper.build();
    let mut text = HEAD.to_owned();
    if let Some(status) = damper.get_after_help() {
        let _ = write!(text, "\n{status}\n");
    }
    let (session, _) = arguments(&damper);
    let _ = write!(text, "\n## Of every command that asks a server\n\n{session}");
    for command in visible(&damper) {
        describe(command, "damper", &mut text);
    }
    output::data(&text)
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

/// A command that has others below it is no more than those.
fn describe(command: &Command, above: &str, text: &mut String) {
    let name = format!("{above} {}", command.get_name());
    if command.has_subcommands() && command.is_subcommand_required_set() {
        visible(command).for_each(|command| describe(command, &name, text));
        return;
    }
    let (flags, words) = arguments(command);
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let usage = command.clone().render_usage().to_string().replace("Usage: ", "");
    let _ = write!(text, "\n## {name}\n\n{}\n\n```text\n{}\n```\n", about.trim(), usage.trim());
    if let Some(more) = command.get_after_help() {
        let _ = write!(text, "\n{more}\n");
    }
    let _ = write!(text, "\n{words}{flags}");
    visible(command).for_each(|command| describe(command, &name, text));
}

/// The flags and the words of a command, each as a list; those of every command are told once.
fn arguments(command: &Command) -> (String, String) {
    let told = |arg: &&Arg| {
        let id = arg.get_id();
        let everywhere = arg.is_global_set() && command.get_name() != "damper";
        !arg.is_hide_set() && id != "help" && id != "version" && !everywhere
    };
    let (words, flags): (Vec<&Arg>, Vec<&Arg>) =
        command.get_arguments().filter(told).partition(|arg| arg.is_positional());
    let list = |args: Vec<&Arg>| args.into_iter().map(line).collect::<String>();
    (list(flags), list(words))
}

fn line(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let help = help.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    let mut line = format!("- `{}`: {help}", arg.to_string().replace('`', ""));
    let values = arg.get_possible_values();
    let choices: Vec<String> = values
        .iter()
        .filter(|value| !value.is_hide_set() && arg.get_action().takes_values())
        .map(|value| match value.get_help() {
            Some(help) => format!("`{}` ({help})", value.get_name()),
            None => format!("`{}`", value.get_name()),
        })
        .collect();
    if !choices.is_empty() {
        let _ = write!(line, "; one of {}", choices.join(", "));
    }
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if !defaults.is_empty() && arg.get_action().takes_values() {
        let _ = write!(line, " [default: {}]", defaults.join(" "));
    }
    if let Some(variable) = arg.get_env().filter(|_| !help.contains("[env:")) {
        let _ = write!(line, " [env: {}]", variable.to_string_lossy());
    }
    line + "\n"
}
