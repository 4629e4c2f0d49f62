//! Requests and responses of HTTP libraries.

use http::{Extensions, HeaderMap, Method, Request, Response, StatusCode};

/// A request of an HTTP library.
pub trait HttpRequest: Sized {
    /// Returns the method.
    fn method(&self) -> &Method;

    /// Returns the path.
    fn path(&self) -> &str;

    /// Returns the headers.
    fn headers(&self) -> &HeaderMap;

    /// Returns the headers.
    fn headers_mut(&mut self) -> &mut HeaderMap;

    /// Returns the extensions; `None` if the library's requests have none. [`CallOptions`], [`Context`] and
    /// [`PathTemplate`] are read from them.
    ///
    /// [`CallOptions`]: crate::CallOptions
    /// [`Context`]: crate::Context
    /// [`PathTemplate`]: super::PathTemplate
    fn extensions(&self) -> Option<&Extensions> {
        None
    }

    /// Returns the length of the body, if it is known: a body above the rule's `replay_limit_bytes` is sent
    /// once.
    fn body_len(&self) -> Option<u64> {
        None
    }

    /// Returns a copy; `None` if the body is a stream that can be sent once.
    fn try_clone(&self) -> Option<Self>;
}

/// A response of an HTTP library.
pub trait HttpResponse {
    /// Returns the status.
    fn status(&self) -> StatusCode;

    /// Returns the headers.
    fn headers(&self) -> &HeaderMap;
}

impl<B: Clone + http_body::Body> HttpRequest for Request<B> {
    fn method(&self) -> &Method {
        Request::method(self)
    }

    fn path(&self) -> &str {
        self.uri().path()
    }

    fn headers(&self) -> &HeaderMap {
        Request::headers(self)
    }

    fn headers_mut(&mut self) -> &mut HeaderMap {
        Request::headers_mut(self)
    }

    fn extensions(&self) -> Option<&Extensions> {
        Some(Self::extensions(self))
    }

    fn body_len(&self) -> Option<u64> {
        self.body().size_hint().exact()
    }

    fn try_clone(&self) -> Option<Self> {
        Some(self.clone())
    }
}

impl<B> HttpResponse for Response<B> {
    fn status(&self) -> StatusCode {
        Response::status(self)
    }

    fn headers(&self) -> &HeaderMap {
        Response::headers(self)
    }
}

#[cfg(feature = "reqwest")]
impl HttpRequest for reqwest::Request {
    fn method(&self) -> &Method {
        Self::method(self)
    }

    fn path(&self) -> &str {
        self.url().path()
    }

    fn headers(&self) -> &HeaderMap {
        Self::headers(self)
    }

    fn headers_mut(&mut self) -> &mut HeaderMap {
        Self::headers_mut(self)
    }

    fn body_len(&self) -> Option<u64> {
        let bytes = self.body()?.as_bytes()?;
        u64::try_from(bytes.len()).ok()
    }

    fn try_clone(&self) -> Option<Self> {
        Self::try_clone(self)
    }
}

#[cfg(feature = "reqwest")]
impl HttpResponse for reqwest::Response {
    fn status(&self) -> StatusCode {
        Self::status(self)
    }

    fn headers(&self) -> &HeaderMap {
        Self::headers(self)
    }
}
