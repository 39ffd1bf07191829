"""Log in at an OpenID Connect provider: authorization code with PKCE, checked to the letter."""
