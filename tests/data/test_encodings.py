"""Encodings older than Unicode: read right, or refused with what the candidates make of the file; never misread."""

from __future__ import annotations

from pathlib import Path

import pytest

from classify.errors import InputError
from classify.tables.encoding import Encoding, detect_encoding
from classify.tables.formats.registry import read_table
from classify.tables.source import Source

# Sentences of customers, and the encodings that people's programs write them in.
LANGUAGES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "Finnish": (
        (
            "Tilaukseni ei ole vieläkään saapunut perille",
            "Näyttö särkyi heti ensimmäisenä päivänä",
            "Pyydän hyvitystä täältä",
        ),
        ("cp1252", "iso8859_15", "mac_roman", "cp850"),
    ),
    "German": (
        (
            "Die Bestellung ist noch nicht angekommen, können Sie das prüfen",
            "Mein Schlüssel ist zu groß",
            "Ich möchte kündigen",
        ),
        ("cp1252", "mac_roman", "cp850", "cp437"),
    ),
    "French": (
        (
            "La livraison a été retardée à cause de la grève",
            "Je n'ai pas reçu ma commande, où est-elle passée",
            "Le prix est trop élevé",
        ),
        ("cp1252", "iso8859_15", "mac_roman", "cp850"),
    ),
    "Spanish": (
        (
            "El pedido llegó dañado y nadie contesta al teléfono",
            "¿Cuándo podré cambiar la contraseña de mi niño?",
            "Atención pésima",
        ),
        ("cp1252", "mac_roman", "cp850"),
    ),
    "Danish": (
        ("Jeg har ikke fået min pakke endnu, hvor bliver den af", "Prisen er alt for høj på årsabonnementet"),
        ("cp1252", "cp850"),
    ),
    "Czech": (
        (
            "Zásilka nepřišla včas a nikdo mi neodpověděl",
            "Nemohu se přihlásit ke svému účtu",
            "Chtěl bych vrátit peníze, prosím",
        ),
        ("cp1250", "iso8859_2", "cp852"),
    ),
    "Polish": (
        (
            "Przesyłka nie dotarła na czas, proszę o zwrot pieniędzy",
            "Nie mogę się zalogować na swoje konto",
            "Źle działa płatność",
        ),
        ("cp1250", "iso8859_2", "cp852"),
    ),
    "Hungarian": (
        (
            "A csomag még mindig nem érkezett meg, kérem a segítségüket",
            "Nem tudok belépni a fiókomba",
            "Hibás a számla összege, őrület",
        ),
        ("cp1250", "iso8859_2"),
    ),
    "Turkish": (
        (
            "Siparişim hâlâ gelmedi, lütfen yardım edin",
            "Şifremi değiştiremiyorum çünkü uygulama açılmıyor",
            "Ürün kırık çıktı, iade istiyorum",
        ),
        ("cp1254", "iso8859_9"),
    ),
    "Latvian": (
        ("Pasūtījums vēl nav saņemts, lūdzu palīdziet", "Es nevaru pieslēgties savam kontam, kāpēc tā"),
        ("cp1257",),
    ),
    "Greek": (
        ("Η παραγγελία μου δεν έχει φτάσει ακόμα", "Δεν μπορώ να συνδεθώ στον λογαριασμό μου"),
        ("cp1253", "iso8859_7"),
    ),
    "Russian": (
        (
            "Мой заказ до сих пор не доставлен, помогите",
            "Не могу войти в личный кабинет",
            "Верните деньги за сломанный телефон",
        ),
        ("cp1251", "koi8_r", "iso8859_5", "cp866"),
    ),
    "Ukrainian": (
        ("Моє замовлення ще не доставили, допоможіть будь ласка", "Не можу увійти до свого облікового запису"),
        ("cp1251", "koi8_u"),
    ),
    "Hebrew": (("ההזמנה שלי עדיין לא הגיעה, אפשר לבדוק", "אני לא מצליח להיכנס לחשבון שלי"), ("cp1255",)),
    "Arabic": (("لم يصل طلبي حتى الآن أرجو المساعدة", "لا أستطيع تسجيل الدخول إلى حسابي"), ("cp1256",)),
    "Thai": (("สินค้ายังมาไม่ถึงช่วยตรวจสอบให้หน่อย", "ฉันเข้าสู่ระบบไม่ได้ตั้งแต่เมื่อวาน"), ("cp874",)),
    "Chinese": (
        ("我的订单还没有送到请帮我查一下", "我无法登录自己的账户怎么办", "手机屏幕坏了想要退款"),
        ("gb18030", "gbk"),
    ),
    "Chinese of Taiwan": (
        ("我的訂單還沒有送到請幫我查詢", "我無法登入自己的帳戶怎麼辦", "手機螢幕壞了想要退款"),
        ("big5",),
    ),
    "Japanese": (
        (
            "注文した商品がまだ届いていません",
            "ログインできないので助けてください",
            "画面が割れていたので返金してほしい",
        ),
        ("cp932", "euc_jp"),
    ),
    "Korean": (
        (
            "주문한 상품이 아직 도착하지 않았습니다",
            "계정에 로그인할 수 없어요 도와주세요",
            "화면이 깨져서 환불하고 싶습니다",
        ),
        ("euc_kr", "cp949"),
    ),
}
CASES = [(language, encoding) for language, (_, encodings) in LANGUAGES.items() for encoding in encodings]


def make_table(sentences: tuple[str, ...], rows: int = 20) -> str:
    lines = [f'"{sentences[number % len(sentences)]} ({number})",{"ab"[number % 2]}' for number in range(rows)]
    return "\n".join(["text,label", *lines]) + "\n"


def detect(path: Path, data: bytes) -> Encoding:
    path.write_bytes(data)
    return detect_encoding(Source(str(path), "--data"))


@pytest.mark.parametrize(("language", "encoding"), CASES)
def test_languages_are_read_right(tmp_path: Path, language: str, encoding: str) -> None:
    text = make_table(LANGUAGES[language][0])
    result = detect(tmp_path / "a.csv", text.encode(encoding))
    assert text.encode(encoding).decode(result.name) == text
    excerpt = result.sample.strip("“”.")
    assert excerpt
    assert excerpt in text
    assert not excerpt.isascii()
    assert result.sample in read_table(str(tmp_path / "a.csv")).form


@pytest.mark.parametrize("text", ["a table of 20 °C", "it costs £5 or 5 €", "the “quoted” word", "my café"])
def test_a_sign_among_english_words(tmp_path: Path, text: str) -> None:
    table = f"text,label\n{text},a\n" + "the order is late and nobody answers the phone,b\n" * 20
    assert detect(tmp_path / "a.csv", table.encode("cp1252")).name == "cp1252"


def test_the_commoner_of_encodings_that_decode_alike(tmp_path: Path) -> None:
    text = make_table(LANGUAGES["German"][0])
    assert text.encode("cp1252") == text.encode("cp1250")
    assert detect(tmp_path / "a.csv", text.encode("cp1250")).name == "cp1252"


def test_japanese_of_seven_bits_far_into_a_file(tmp_path: Path) -> None:
    text = "text,label\n" + "plain,a\n" * 20_000 + "注文した商品,b\n"
    assert detect(tmp_path / "a.csv", text.encode("iso2022_jp")).name == "iso2022_jp"


@pytest.mark.parametrize("encoding", ["utf_16", "utf-32", "UTF16"])
def test_an_encoding_with_a_mark_is_not_that_of_a_file_without(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(make_table(LANGUAGES["French"][0]).encode("utf-16-le"))
    with pytest.raises(InputError, match=r"does not begin with a byte-order mark; give utf-(16-le|32-le) or "):
        detect_encoding(Source(str(path), "--data"), encoding)
    path.write_bytes(make_table(LANGUAGES["French"][0]).encode(encoding))
    assert "retardée" in detect_encoding(Source(str(path), "--data"), encoding).sample


@pytest.mark.parametrize("encoding", ["rot13", "base64", "hex", "zlib", "undefined", "idna"])
def test_codecs_of_bytes_are_no_encodings(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.csv").write_text(make_table(LANGUAGES["German"][0]), encoding="cp1252")
    with pytest.raises(InputError, match=f"--encoding {encoding}: unknown to Python as an encoding of text"):
        detect_encoding(Source(str(tmp_path / "a.csv"), "--data"), encoding)


def test_what_punycode_cannot_decode_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\nit is half-read,a\n")
    with pytest.raises(InputError, match=r"--encoding punycode: not valid in .* line [12] \(.*\); give another"):
        detect_encoding(Source(str(tmp_path / "a.csv"), "--data"), "punycode")
