//! The `damper-proxy` command: the proxy without the server and its administration.

fn main() -> std::process::ExitCode {
    damper_cli::damper_proxy()
}
