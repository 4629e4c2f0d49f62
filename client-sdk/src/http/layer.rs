//! The client layer for HTTP: its settings, and the handles of its routes.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use damper_core::{MAX_ROUTES, key};
use damper_retry::Retry;
use http::Method;
use tower_layer::Layer;

use super::assess::{Assess, HintBy, ResponseHead, RetryHint};
use super::client::HttpClient;
use crate::operation::Governed;
use crate::routes::{Callee, Runtime};

/// Template of requests without one.
const ANY_PATH: &str = "/{path}";

/// Applies the rules to the HTTP requests to one callee. Made by
/// [`Damper::http_client`](crate::Damper::http_client).
#[derive(Clone)]
pub struct HttpClientLayer(Arc<Shared>);

/// What the clients of a layer share.
pub(super) struct Shared {
    engine: Arc<Runtime>,
    callee: Arc<Callee>,
    pub(super) external: bool,
    template: Option<Template>,
    hint: Option<HintBy>,
    /// Handles by `GET:/path`.
    handles: ArcSwap<HashMap<String, Handle>>,
    has_warned: AtomicBool,
}

pub(super) type Handle = Arc<Retry<Assess, Governed>>;
/// Returns the template of a path.
type Template = Arc<dyn Fn(&Method, &str) -> String + Send + Sync>;

/// The template of the path of one request, in its extensions. It replaces that of
/// [`HttpClient::at`](super::HttpClient::at).
///
/// ```
/// use damper_sdk::http::PathTemplate;
///
/// let request =
/// http::Request::get("http://catalog/pages/7").extension(PathTemplate::new("/pages/{number}"));
/// # drop(request);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathTemplate(pub(super) Cow<'static, str>);

impl PathTemplate {
    /// Returns the template. It begins with a slash.
    pub fn new(template: impl Into<Cow<'static, str>>) -> Self {
        Self(template.into())
    }
}

impl HttpClientLayer {
    pub(crate) fn new(engine: Arc<Runtime>, callee: Arc<Callee>) -> Self {
        Self(Arc::new(Shared {
            engine,
            callee,
            external: true,
            template: None,
            hint: None,
            handles: ArcSwap::default(),
            has_warned: AtomicBool::new(false),
        }))
    }

    /// Treats the callee as a service inside the system: sends it flags and deadline, and heeds its flag.
    #[must_use]
    pub fn internal(self) -> Self {
        self.with(|shared| Shared { external: false, ..shared })
    }

    /// Sets the function that returns the template of a path, `/orders/{id}` for `/orders/7`. Without one the
    /// routes are named by [`HttpClient::at`] or [`PathTemplate`], and all other requests belong to
    /// `GET:/{path}` and its like.
    #[must_use]
    pub fn template(self, template: impl Fn(&Method, &str) -> String + Send + Sync + 'static) -> Self {
        self.with(|shared| Shared { template: Some(Arc::new(template)), ..shared })
    }

    /// Sets the function that reads a vendor's own header for retries. A request that must not be repeated is
    /// sent once whatever it returns.
    ///
    /// ```
    /// # let damper = damper_sdk::Damper::off();
    /// use damper_sdk::http::RetryHint;
    ///
    /// let layer = damper.http_client("payments")?.retry_hint(|head| {
    ///     match head.headers.get("x-should-retry").map(|value| value.as_bytes()) {
    ///         Some(b"true") => RetryHint::Retry,
    ///         Some(b"false") => RetryHint::Never,
    ///         _ => RetryHint::ByStatus,
    ///     }
    /// });
    /// # drop(layer);
    /// # Ok::<(), damper_sdk::Faults>(())
    /// ```
    #[must_use]
    pub fn retry_hint(self, hint: impl Fn(ResponseHead<'_>) -> RetryHint + Send + Sync + 'static) -> Self {
        self.with(|shared| Shared { hint: Some(HintBy(Arc::new(hint))), ..shared })
    }

    /// Wraps an HTTP client: a `reqwest::Client` (feature `reqwest`), or any tower service of HTTP requests.
    /// Its own retries must be off. (The method of `tower_layer::Layer`, without the import.)
    pub fn layer<S>(&self, inner: S) -> HttpClient<S> {
        HttpClient::new(inner, Arc::clone(&self.0))
    }

    fn with(self, change: impl FnOnce(Shared) -> Shared) -> Self {
        let Shared { engine, callee, external, template, hint, .. } = &*self.0;
        Self(Arc::new(change(Shared {
            engine: Arc::clone(engine),
            callee: Arc::clone(callee),
            external: *external,
            template: template.clone(),
            hint: hint.clone(),
            handles: ArcSwap::default(),
            has_warned: AtomicBool::new(false),
        })))
    }
}

impl<S> Layer<S> for HttpClientLayer {
    type Service = HttpClient<S>;

    fn layer(&self, inner: S) -> HttpClient<S> {
        self.layer(inner)
    }
}

impl fmt::Debug for HttpClientLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClientLayer").field("callee", &self.0.callee.name()).finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn callee(&self) -> &str {
        self.callee.name()
    }

    /// Returns the handle of a request. `template`: that of the request or of its client.
    pub(super) fn handle(&self, verb: &Method, path: &str, template: Option<&str>) -> Handle {
        let method = self.method(verb, path, template);
        let known = self.handles.load();
        if let Some(handle) = known.get(&method) {
            return Arc::clone(handle);
        }
        if known.len() < MAX_ROUTES {
            return self.add_handle(method);
        }
        // Beyond the limit the requests of a verb share one handle.
        let method = if is_standard(verb) { of_any_path(verb.as_str()) } else { of_any_path("OTHER") };
        known.get(&method).map(Arc::clone).unwrap_or_else(|| self.add_handle(method))
    }

    fn add_handle(&self, method: String) -> Handle {
        let source = Governed::new(Arc::clone(&self.engine), Arc::clone(&self.callee), &method);
        let assess = Assess { external: self.external, hint: self.hint.clone() };
        let handle = Arc::new(Retry::from_source(format!("{} {method}", self.callee.name()), source, assess));
        self.handles.rcu(|handles| {
            let mut handles = HashMap::clone(handles);
            handles.insert(method.clone(), Arc::clone(&handle));
            handles
        });
        handle
    }

    /// Returns the method of the request's route: `GET:/orders/{id}`.
    fn method(&self, verb: &Method, path: &str, template: Option<&str>) -> String {
        let template = match (template, &self.template) {
            (Some(template), _) => Cow::Borrowed(template),
            (None, Some(template)) => Cow::Owned(template(verb, path)),
            (None, None) => return of_any_path(verb.as_str()),
        };
        let named = format!("{verb}:{template}");
        if template.starts_with('/') && key::is_method(&named) {
            return named;
        }
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            let callee = self.callee.name();
            tracing::warn!(callee, %template, "invalid path template: it must begin with a slash and contain no spaces");
        }
        of_any_path(verb.as_str())
    }
}

fn of_any_path(verb: &str) -> String {
    format!("{verb}:{ANY_PATH}")
}

/// Other methods are chosen by callers, in any number.
fn is_standard(verb: &Method) -> bool {
    let standard = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::CONNECT,
        Method::OPTIONS,
        Method::TRACE,
        Method::PATCH,
    ];
    standard.contains(verb)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Damper;

    #[test]
    fn requests_beyond_the_limit_share_a_handle_per_verb() {
        let HttpClientLayer(shared) = Damper::off().http_client("catalog").unwrap();
        for number in 0..MAX_ROUTES {
            shared.handle(&Method::GET, "/", Some(&format!("/{number}")));
        }
        let handle = |verb: &str, path| shared.handle(&verb.parse().unwrap(), "/", Some(path));
        assert!(Arc::ptr_eq(&handle("GET", "/7"), &handle("GET", "/7")));
        assert!(Arc::ptr_eq(&handle("GET", "/a"), &handle("GET", "/b")));
        assert!(!Arc::ptr_eq(&handle("GET", "/a"), &handle("PUT", "/a")));
        assert!(Arc::ptr_eq(&handle("BREW", "/a"), &handle("WHEN", "/b")));
        assert_eq!(shared.handles.load().len(), MAX_ROUTES + 3);
    }

    #[test]
    fn template_that_is_no_path_is_warned_of_once() {
        let HttpClientLayer(shared) = Damper::off().http_client("catalog").unwrap();
        assert_eq!(shared.method(&Method::GET, "/orders/7", Some("/orders/{id}")), "GET:/orders/{id}");
        assert!(!shared.has_warned.load(Ordering::Relaxed));
        assert_eq!(shared.method(&Method::GET, "/orders/7", Some("orders/{id}")), "GET:/{path}");
        assert!(shared.has_warned.load(Ordering::Relaxed));
    }
}
