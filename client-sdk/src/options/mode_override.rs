//! Mode override of the process: its variables, and the words that they may hold.

use damper_core::Mode;

/// Variable with a mode.
pub(crate) const MODE_VARIABLE: &str = "DAMPER_MODE";
/// Variable with the path of the override file.
pub(crate) const FILE_VARIABLE: &str = "DAMPER_MODE_FILE";

/// Parses a mode; `None` if empty.
///
/// # Errors
/// The mode is unknown.
pub(crate) fn parse(text: &str) -> Result<Option<Mode>, String> {
    match text.trim() {
        "" => Ok(None),
        "off" => Ok(Some(Mode::Off)),
        "observe" => Ok(Some(Mode::Observe)),
        "enforce" => Ok(Some(Mode::Enforce)),
        other => Err(format!("{other:?} unknown mode, must be off, observe or enforce")),
    }
}
