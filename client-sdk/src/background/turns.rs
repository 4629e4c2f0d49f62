//! Yields to the application's runtime during long background work.

/// Routes or methods processed between two yields.
const IN_A_TURN: u32 = 32;

/// Counts the work since the last yield.
#[derive(Debug, Default)]
pub(crate) struct Turns(u32);

impl Turns {
    /// Counts one item and yields if due.
    pub(crate) async fn done(&mut self) {
        self.0 += 1;
        if self.0 == IN_A_TURN {
            self.0 = 0;
            tokio::task::yield_now().await;
        }
    }
}
