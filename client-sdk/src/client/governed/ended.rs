//! A call that has ended without a response that begins, and its response for the application.

use damper_core::{Answer, Finish, Time};

use crate::client::local_response::LocalResponse;
use crate::client::response_body::{CallResult, ResponseBody};
use crate::headers;
use crate::outcome::verdict::BoxError;
use crate::record::report::{self, CallReport};

pub(super) struct EndedCall<B: http_body::Body> {
    pub(super) finish: Finish,
    /// Result of the last attempt, with which the call may end.
    pub(super) last: Option<CallResult<B>>,
    /// Response to a call that a kill rejects.
    pub(super) refusal: Option<Box<LocalResponse>>,
    pub(super) report: Option<CallReport>,
}

impl<B> EndedCall<B>
where
    B: http_body::Body,
    B::Error: Into<BoxError>,
{
    /// Returns the response for the application.
    pub(super) fn answer(self) -> CallResult<B> {
        let Self { finish, last, refusal, report } = self;
        let own = match (finish.answer, last) {
            (Answer::Attempt(_), Some(last)) => {
                let mut response = last.map_err(|error| report::in_error(report, error))?;
                headers::clean(response.headers_mut());
                ResponseBody::report(&mut response, report);
                return Ok(response);
            }
            (Answer::Killed, _) => {
                refusal.map_or_else(|| LocalResponse::killed(None, Time::ZERO), |own| *own)
            }
            (Answer::Blocked, _) => LocalResponse::Blocked,
            (Answer::CircuitOpen, _) => LocalResponse::CircuitOpen,
            (Answer::TimedOut, _) | (Answer::Attempt(_), None) => LocalResponse::TimedOut,
        };
        let mut response = own.response(ResponseBody::empty());
        ResponseBody::report(&mut response, report);
        Ok(response)
    }

    /// Returns true if the response can carry the id of a job to the application. A response that ended
    /// without trailers cannot.
    #[cfg(feature = "queue")]
    pub(super) fn can_name_a_job(&self) -> bool {
        match (&self.last, self.finish.answer) {
            (Some(Ok(response)), Answer::Attempt(_)) => response.body().can_name_a_job(),
            _ => true,
        }
    }

    /// Returns the response of a call that has become a job: as [`answer`](Self::answer), and layers above
    /// must not retry it.
    #[cfg(feature = "queue")]
    pub(super) fn answer_as_job(mut self, job: &http::HeaderValue) -> CallResult<B> {
        self.report = self.report.map(CallReport::as_final);
        match self.answer() {
            Ok(mut response) => {
                ResponseBody::name_job(&mut response, job);
                Ok(response)
            }
            Err(error) => Err(report::with_job(error, job)),
        }
    }
}
