"""Who runs a host, judged by its name alone."""

import pytest

from gateway.settings.hosts import is_publicly_routable, vendor_domain

HOSTS = {
    "a private address": ("10.0.0.5", False),
    "a link-local address": ("169.254.1.1", False),
    "a shared address of carriers": ("100.64.0.1", False),
    "loopback": ("127.0.0.1", False),
    "loopback of version 6": ("[::1]", False),
    "a private address of version 6": ("fd00::1", False),
    "a link-local address with a zone": ("fe80::1%eth0", False),
    "a public address": ("8.8.8.8", True),
    "a public address of version 6": ("2001:4860:4860::8888", True),
    "a public address inside version 6": ("::ffff:8.8.8.8", True),
    "a private address inside version 6": ("::ffff:10.0.0.1", False),
    "a public address as one number": ("134744072", True),
    "a public address in hexadecimal": ("0x08080808", True),
    "a public address in octal": ("010.010.010.010", True),
    "a public address in two parts": ("8.8", True),
    "loopback as one number": ("2130706433", False),
    "a single label": ("gpu-box", False),
    "a name in a cluster": ("vllm.default.svc.cluster.local", False),
    "a name that ends like a private one": ("notlocal.example", True),
    "a public name": ("llm.example.com", True),
    "a public name with a final dot": ("llm.example.com.", True),
    "localhost in capitals": ("LOCALHOST", False),
}


@pytest.mark.parametrize(("host", "is_public"), HOSTS.values(), ids=HOSTS.keys())
def test_a_host_is_public_or_private_by_its_form(host, is_public):
    assert is_publicly_routable(host) is is_public


VENDORS = {
    "a vendor's host": ("api.groq.com", "groq.com"),
    "a vendor's bare domain": ("openrouter.ai", "openrouter.ai"),
    "capitals and a final dot": ("API.OpenAI.com.", "openai.com"),
    "a regional host": ("bedrock-runtime.eu-central-1.amazonaws.com", "amazonaws.com"),
    "a private endpoint": (
        "vpce-1.bedrock-runtime.eu-central-1.vpce.amazonaws.com",
        "amazonaws.com",
    ),
    "a rented machine": ("ec2-3-1-2-4.eu-central-1.compute.amazonaws.com", None),
    "a load balancer of one's own": ("llm-1.elb.eu-central-1.amazonaws.com", None),
    "a rented machine at another cloud": ("llm.westeurope.cloudapp.azure.com", None),
    "a resource of a customer": ("acme.openai.azure.com", "openai.azure.com"),
    "a domain that only ends alike": ("notgroq.com", None),
    "a vendor's name as a subdomain": ("groq.com.example.org", None),
}


@pytest.mark.parametrize(("host", "domain"), VENDORS.values(), ids=VENDORS.keys())
def test_a_vendors_host_is_recognised(host, domain):
    assert vendor_domain(host) == domain
