//! Checks of the code base's structure and English, and the numbers that show both.

mod files;
mod graph;
mod layers;
mod measure;
mod prose;
mod rooms;
mod source;

pub(crate) use layers::run as layers;
pub(crate) use measure::run as measure;
pub(crate) use prose::run as prose;
