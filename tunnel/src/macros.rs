//! `AsyncRead` and `AsyncWrite` for enums of types that implement both.

/// Calls a method of the current variant.
macro_rules! forward {
    ($self:ident.$method:ident $arguments:tt, $($(#[$attribute:meta])* $variant:ident),+) => {
        match $self.get_mut() {
            $(
                $(#[$attribute])*
                Self::$variant(io) => std::pin::Pin::new(io).$method $arguments,
            )+
        }
    };
}

/// Implements `AsyncRead` for an enum: `impl_async_read!(Name: Variant, Variant)`.
macro_rules! impl_async_read {
    ($type:ty: $($(#[$attribute:meta])* $variant:ident),+ $(,)?) => {
        impl tokio::io::AsyncRead for $type {
            fn poll_read(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                buf: &mut tokio::io::ReadBuf<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                $crate::macros::forward!(
                    self.poll_read(cx, buf),
                    $($(#[$attribute])* $variant),+
                )
            }
        }
    };
}

/// Implements `AsyncWrite`, including vectored writes, for an enum: `impl_async_write!(Name:
/// Variant, Variant)`.
macro_rules! impl_async_write {
    ($type:ty: $($(#[$attribute:meta])* $variant:ident),+ $(,)?) => {
        impl tokio::io::AsyncWrite for $type {
            fn poll_write(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                buf: &[u8],
            ) -> std::task::Poll<std::io::Result<usize>> {
                $crate::macros::forward!(
                    self.poll_write(cx, buf),
                    $($(#[$attribute])* $variant),+
                )
            }

            fn poll_write_vectored(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                bufs: &[std::io::IoSlice<'_>],
            ) -> std::task::Poll<std::io::Result<usize>> {
                $crate::macros::forward!(
                    self.poll_write_vectored(cx, bufs),
                    $($(#[$attribute])* $variant),+
                )
            }

            fn is_write_vectored(&self) -> bool {
                match self {
                    $($(#[$attribute])* Self::$variant(io) => io.is_write_vectored(),)+
                }
            }

            fn poll_flush(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                $crate::macros::forward!(
                    self.poll_flush(cx),
                    $($(#[$attribute])* $variant),+
                )
            }

            fn poll_shutdown(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                $crate::macros::forward!(
                    self.poll_shutdown(cx),
                    $($(#[$attribute])* $variant),+
                )
            }
        }
    };
}

pub(crate) use {forward, impl_async_read, impl_async_write};
