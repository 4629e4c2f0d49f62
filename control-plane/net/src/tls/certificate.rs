//! Validity of a certificate and its warnings.

use std::time::{Duration, SystemTime};

use x509_parser::prelude::X509Certificate;
use x509_parser::time::ASN1Time;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Time before the end at which a certificate or token is warned of. Automatic renewal happens earlier.
const TELL_BEFORE: Duration = Duration::from_secs(14 * 24 * 3600);
/// Longest lifetime that is renewed automatically. Its warning begins at a fifth of the lifetime.
const SHORT: Duration = Duration::from_secs(7 * 24 * 3600);
const TELL_SHARE: u32 = 5;

/// Returns true if a lifetime ends soon.
pub fn is_soon(begins: Option<SystemTime>, ends: SystemTime, now: SystemTime) -> bool {
    let whole = begins.and_then(|begin| ends.duration_since(begin).ok());
    let before = whole.filter(|whole| *whole <= SHORT).map_or(TELL_BEFORE, |whole| whole / TELL_SHARE);
    ends <= now + before
}

/// Validity of a certificate. Unreadable times are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CertificateValidity {
    begins_at: Option<SystemTime>,
    /// The end; `None` if the certificate never expires.
    pub ends_at: Option<SystemTime>,
}

impl CertificateValidity {
    /// Reads the validity of a certificate.
    pub fn of(certificate: &X509Certificate<'_>) -> Self {
        let validity = certificate.validity();
        Self { begins_at: time(validity.not_before), ends_at: time(validity.not_after) }
    }

    /// Returns why the certificate is not valid now; `None` if it is.
    pub fn problem(&self, now: SystemTime) -> Option<String> {
        let text = |at: SystemTime| prost_types::Timestamp { nanos: 0, ..at.into() };
        match *self {
            Self { ends_at: Some(at), .. } if at <= now => {
                Some(format!("the certificate expired at {}; clients reject it", text(at)))
            }
            Self { begins_at: Some(at), .. } if at > now => Some(format!(
                "the certificate is not valid before {}; clients reject it until then",
                text(at)
            )),
            _ => None,
        }
    }

    /// Returns [`Self::problem`], or that the certificate expires soon.
    pub fn warning(&self, now: SystemTime) -> Option<String> {
        let soon = self.ends_at.filter(|at| is_soon(self.begins_at, *at, now));
        let ending = soon.map(|at| {
            let days = at.duration_since(now).unwrap_or_default().as_secs() / DAY.as_secs();
            let left = match days {
                0 => "less than a day".to_owned(),
                1 => "1 day".to_owned(),
                days => format!("{days} days"),
            };
            let at = prost_types::Timestamp { nanos: 0, ..at.into() };
            format!("the certificate expires in {left}, at {at}")
        });
        self.problem(now).or(ending)
    }
}

/// Returns `None` for times before 1970.
fn time(at: ASN1Time) -> Option<SystemTime> {
    let seconds = u64::try_from(at.timestamp()).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warning_before_validity_near_its_end_and_after_it() {
        let at = |days: u32| SystemTime::UNIX_EPOCH + days * DAY;
        let validity = CertificateValidity { begins_at: Some(at(100)), ends_at: Some(at(200)) };
        assert!(validity.problem(at(99)).unwrap().contains("not valid before 1970-04-11T00:00:00Z"));
        assert_eq!((validity.problem(at(100)), validity.warning(at(185))), (None, None));
        assert_eq!(validity.problem(at(199)), None);
        assert!(validity.warning(at(186)).unwrap().contains("expires in 14 days, at 1970-07-20"));
        assert!(validity.warning(at(200) - DAY / 2).unwrap().contains("less than a day"));
        for over in [validity.problem(at(200)), validity.warning(at(300))] {
            assert!(over.unwrap().contains("expired at 1970-07-20T00:00:00Z"));
        }
        let short = CertificateValidity { begins_at: Some(at(100)), ends_at: Some(at(105)) };
        assert!(short.warning(at(103)).is_none() && short.warning(at(104)).is_some());
        let ten_days = CertificateValidity { begins_at: Some(at(100)), ends_at: Some(at(110)) };
        assert!(ten_days.warning(at(100)).unwrap().contains("expires in 10 days"));
        assert_eq!(CertificateValidity::default().warning(at(1)), None);
    }
}
