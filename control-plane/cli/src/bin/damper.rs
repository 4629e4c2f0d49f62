//! The `damper` command.

fn main() -> std::process::ExitCode {
    damper_cli::damper()
}
