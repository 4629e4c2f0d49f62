//! The runtime is the application's: work in the background that goes through many routes gives it turns between.

/// So many routes or methods at a time.
const IN_A_TURN: u32 = 32;

/// Counts what was done since the others had their turn.
#[derive(Debug, Default)]
pub(crate) struct Turns(u32);

impl Turns {
    /// One more was done.
    pub(crate) async fn done(&mut self) {
        self.0 += 1;
        if self.0 == IN_A_TURN {
            self.0 = 0;
            tokio::task::yield_now().await;
        }
    }
}
