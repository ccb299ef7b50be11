"""Signatures, against the examples that AWS publishes."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from standfast.store.remote.keys import Keys
from standfast.store.remote.signature import EMPTY, authorization, encoded, signed_headers

# The test suite of Signature Version 4.
SUITE = Keys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
HEADERS = {"host": "example.amazonaws.com", "x-amz-date": "20150830T123600Z"}
UNRESERVED = "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
EXAMPLES = {
    "get-vanilla": ("/", [], "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
    "get-unreserved": (
        f"/{UNRESERVED}",
        [],
        "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f",
    ),
    "get-utf8": ("/ሴ", [], "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"),
    "get-vanilla-utf8-query": (
        "/",
        [("ሴ", "bar")],
        "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04",
    ),
}

# "Examples: Signature Calculations" of the S3 API reference.
S3 = Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
TIME = datetime(2013, 5, 24, tzinfo=UTC)
HOST = "examplebucket.s3.amazonaws.com"


@pytest.mark.parametrize(("path", "query", "signature"), EXAMPLES.values(), ids=EXAMPLES)
def test_the_signatures_are_those_of_the_suite(path, query, signature):
    signed = authorization(
        "GET", encoded(path, "/"), query, HEADERS, SUITE, "us-east-1", service="service"
    )
    assert signed == (
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
        f"SignedHeaders=host;x-amz-date, Signature={signature}"
    )


def test_the_headers_are_those_of_an_s3_example():
    query = [("prefix", "J"), ("max-keys", "2")]
    assert signed_headers("GET", HOST, "/", query, S3, "us-east-1", TIME) == {
        "host": HOST,
        "x-amz-content-sha256": EMPTY,
        "x-amz-date": "20130524T000000Z",
        "authorization": "AWS4-HMAC-SHA256 "
        "Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
        "SignedHeaders=host;x-amz-content-sha256;x-amz-date, "
        "Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
    }


def test_the_range_a_token_and_the_time_in_utc_are_signed():
    range_ = {
        "host": HOST,
        "range": "bytes=0-9",
        "x-amz-content-sha256": EMPTY,
        "x-amz-date": "20130524T000000Z",
    }
    signed = authorization("GET", "/test.txt", [], range_, S3, "us-east-1")
    assert signed.endswith("f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41")
    plain = signed_headers("GET", HOST, "/", [], S3, "us-east-1", TIME)
    elsewhere = TIME.astimezone(timezone(timedelta(hours=5)))
    assert signed_headers("GET", HOST, "/", [], S3, "us-east-1", elsewhere) == plain
    keys = Keys(S3.id, S3.secret, "token")
    headers = signed_headers("GET", HOST, "/", [], keys, "us-east-1", TIME)
    assert headers["x-amz-security-token"] == "token"
    assert ";x-amz-security-token," in headers["authorization"]
    assert headers["authorization"][-64:] != plain["authorization"][-64:]
