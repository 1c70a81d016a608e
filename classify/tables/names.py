"""Usual names of columns in many languages, in lower case with _ between words, and what their words say.

A word of a Chinese, Japanese, Korean or Thai name counts anywhere in the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from classify.tables.text_hashes import normalize_text


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Whole names of text columns. Where several columns have one, `text` is the text of the row.
TEXT = "text"
TEXT_NAMES = frozenset(_words("""
    text texts sentence message review content body comment tweet question utterance query document description post
    headline sms comment_text review_text email feedback
    texte commentaire avis phrase nachricht kommentar satz
    texto comentario comentário mensaje mensagem opinión reseña testo commento recensione recensioni
    tekst wiadomość opinia treść zpráva komentář vélemény szöveg mesaj comentariu
    текст отзыв сообщение комментарий відгук повідомлення κείμενο σχόλιο κριτική
    metin yorum نص النص التعليق טקסט תגובה टिप्पणी ข้อความ văn_bản nội_dung
    文本 内容 评论 句子 文字 評論 內容 テキスト 文 本文 レビュー コメント 口コミ 텍스트 내용 리뷰 댓글
"""))  # fmt: skip
# Whole names of short texts, beside which there may be a longer one.
TITLE_NAMES = frozenset(
    _words("""
    title subject subject_line titel betreff titre objet título asunto oggetto onderwerp 标题 標題 タイトル 件名 제목
""")
)
# Words of names such as ReviewText, q3_open or Treść opinii.
TEXT_WORDS = frozenset(_words("""
    text texts comment comments message review reviews content body description feedback question utterance tweet
    sentence narrative abstract transcript remarks opinion plot verbatim open freetext selftext fulltext statement
    clause essay report complaint request headline summary
    nachricht kommentar beschreibung rezension meldung anliegen freitext bemerkung texte commentaire avis message
    description réclamation observation texto comentario mensaje descripción descripcion opinión reseña
    mensagem comentário descrição descricao relato testo commento messaggio descrizione recensione omschrijving
    beschrijving beschrijf ervaring bericht toelichting tekst opis treść opinii zpráva komentář popis szöveg vélemény
    sesizare mesaj descriere kirjoitelma palaute teksti meddelande kommentar beskrivning benämning metin yorum açıklama
    текст отзыв отзыва сообщение комментарий обращение описание відгук повідомлення
    κείμενο σχόλιο κριτική محتوى التعليق نص תוכן הודעה टिप्पणी
    评论 内容 正文 文本 评价内容 評論 內容 本文 レビュー コメント 投稿 내용 리뷰 댓글 ข้อความ
"""))  # fmt: skip
# Whole names of label columns: of labels alone, and of classes that may be metadata, such as the kind of a product.
LABELS = frozenset(("label", "labels"))
LABEL_NAMES = frozenset(_words("""
    label labels target intent sentiment emotion label_name label_text gold_label classification airline_sentiment
    polarity
    étiquette étiquettes etiqueta etichetta метка тональность etiket تصنيف التصنيف תווית ป้ายกำกับ nhãn
    标签 情感 标注 標籤 ラベル 라벨 레이블 감정 duygu stimmung sentimento sentimiento wydźwięk भावना
"""))  # fmt: skip
CATEGORY_NAMES = frozenset(_words("""
    class category categories topic tag tags y classe catégorie klasse kategorie clase categoría categoria kategoria
    класс категория категорія kategori kategorie sınıf فئة الفئة קטגוריה κατηγορία
    类别 分类 類別 カテゴリ カテゴリー 분류
"""))  # fmt: skip
# Names of ratings and decisions.
RATING_NAMES = frozenset(_words("""
    stars star star_rating rating ratings score overall recommended recommend spam is_spam toxic is_toxic stance
    resolution outcome verdict satisfaction is_duplicate relevance quality answer nps csat
    bewertung sterne note étoiles puntuación estrellas ocena оценка 评分 星级 評分 評価 評価区分 평점
"""))  # fmt: skip
# Names of groups that somebody sorts texts into.
GROUP_NAMES = frozenset(_words("""
    queue team department dept group issue_type ticket_type request_type reason theme subject_area folder section
    priority severity urgency
    abteilung thema warteschlange rubrik équipe département thème motif equipo departamento tema reparto afdeling
    отдел тема 部门 主题 部門 부서
"""))  # fmt: skip
# Words of names such as clause_type or intent_name.
LABEL_WORDS = frozenset(_words("""
    label labels class category categories target intent sentiment emotion emotions feeling feelings topic tag tags gold
    rating score grade stars verdict stance polarity tone mood coding coded theme flair annotation
    urgency recommended recommend classification
    kategorie stimmung thema rubrik klasse kat wertung besorolás kategória wydźwięk ocena kategoria
    catégorie motif thème étiquette categoría categoria motivo asunto assunto tema sentimiento sentimento giudizio
    rubriek klacht onderwerp categorie kategori ämne aihe arvosana luokka duygu kategorisi sınıf etiket
    категория тема метка оценка мітка категорія тональність κατηγορία تصنيف التصنيف קטגוריה भावना
    类别 类型 标签 情感 分类 主题 類別 標籤 区分 分類 ラベル カテゴリ 감정 분류 유형 라벨
"""))  # fmt: skip
# Words of names of kinds of anything.
KIND_WORDS = frozenset(
    _words("""
    type kind note code final completion cause aspect field desk nature genre genres group team reason subsystem choice
    cats
    art typ тип остаточна τύπος نوع סוג
""")
)
# What SurveyMonkey writes below the names of columns.
SURVEY_NAMES = frozenset({"response", "open-ended response"})
# What a reviewer says of a row's label.
VERDICTS = frozenset(_words("accept reject ignore accepted rejected ignored"))
# Those of METADATA_WORDS that name a column of yes and no.
FLAG_WORDS = frozenset(
    _words("""
    verified resolved seen handled closed updated submitted vine helpful retweet contract email phone votes vote set
    gender sex annotator annotators annotated rater raters coder coders worker judge id ids
""")
)
# Words of names of what else is known of a row.
# Columns that this program's predictions have; a predicted label is a label only once somebody has corrected it.
PREDICTION = re.compile(r"(predicted(_labels?|_score)?|confidence|in_scope)$|prob_")
PREDICTED = "predicted_label"
METADATA_WORDS = frozenset(_words("""
    id ids uuid guid key nr no number index row unnamed hash seed file filename path url link links image
    annotator annotators annotated rater raters coder coders worker judge votes vote seen agent assignee reporter owner
    user users username author name sender speaker customer customers client respondent reviewer email phone
    lang language locale country region city state location store branch site place address
    date time timestamp year month week day hour set created updated submitted closed at
    version source channel device platform browser os plan price amount cost currency count total sum length size
    product item brand model sku gender sex age status resolved collector weather company contract handling
    confidence prob probability marketplace vine verified app helpful views likes retweet
    kunde name datum ort land stadt preis betrag anzahl status gerät kanaal kanal client pays ville prix âge sexe
    cliente ciudad país precio edad estado canal fecha uf filial produto producto prodotto negozio data prezzo
    nazwa miasto źródło sklep név dátum kor város ürün şehir tarih müşteri
    имя дата город возраст пол кодер филиал продукт канал магазин ім'я
    店舗 注文日 金額 商品 城市 日期 用户 姓名 产品 地区 成분 날짜 이름 지역 상품
"""))  # fmt: skip
# Names of the columns of text pairs: of GLUE's files, usual ones, and those of transformers' pipelines.
TEXT_PAIR_NAMES = (
    ("sentence1", "sentence2"), ("question1", "question2"), ("question", "sentence"), ("premise", "hypothesis"),
    ("#1_string", "#2_string"), ("text_a", "text_b"), ("sentence_a", "sentence_b"), ("text1", "text2"),
    ("text", "text_pair"), ("sentence_1", "sentence_2"), ("text_1", "text_2"), ("question_1", "question_2"),
    ("question", "passage"), ("question", "context"), ("query", "passage"), ("query", "document"),
    ("claim", "evidence"),
)  # fmt: skip
# Text and label column of a spreadsheet that was read in R.
PAIRED_NAMES = ("v2", "v1")
# Names that show that a row is a header.
USUAL_NAMES = TEXT_NAMES | LABEL_NAMES | CATEGORY_NAMES | RATING_NAMES | GROUP_NAMES | {*PAIRED_NAMES}
# The splits of a table, the words for each, and the names of columns that hold them.
SPLITS = ("train", "eval", "test")
SPLIT_WORDS = (
    _words("train training trn entrenamiento treino entraînement apprentissage 训练 训练集 訓練"),
    _words("""validation valid val dev devel development eval evaluation tuning
              validación validação validierung 验证 验证集 検証"""),
    _words("test testing tst holdout heldout unseen prueba teste 测试 测试集 テスト"),
)
SPLIT_NAMES = ("split", "partition", "subset", "part", "set", "usage")
_UNSPACED = re.compile("[\u0e00-\u0eff\u2e80-\u9fff\uac00-\ud7af]")
_INVISIBLE = " \t\r\n\u00a0\u200b\ufeff"


def normalize_name(name: str) -> str:
    """Return a column's name in lower case, without spaces around it, with _ between its words."""
    return re.sub(r"[\s_\-\u200b\ufeff]+", "_", normalize_text(name.strip(_INVISIBLE)))


def split_name(name: str) -> frozenset[str]:
    """Return the words of a name, in lower case; of CamelCase, too."""
    apart = re.sub(r"(?<=[a-zß-ÿ])(?=[A-Z])", "_", name)
    return frozenset(filter(None, re.split(r"[\W\d_]+", apart.lower())))


def has_word(name: str, words: Iterable[str]) -> bool:
    """Return whether one of some words is in a name."""
    found = split_name(name)
    return any(word in found or (_UNSPACED.match(word) and word in name) for word in words)


def parse_split_name(name: str) -> int | None:
    """Return the split that a name such as train, dev or oos_test means, as an index into `SPLITS`.

    None where it means none, or several, as `dev-test` does: validation in one data set, the test in another.
    """
    words = re.findall(r"[a-z]+|[^\W\d_]+", re.sub(r"h[oe]ld[ _-]out", "holdout", name.lower()))
    splits = {split for split, names in enumerate(SPLIT_WORDS) if any(word in names for word in words)}
    if len(splits) == 2 and "unseen" in words:  # valid_unseen
        splits -= {SPLITS.index("test")}
    return splits.pop() if len(splits) == 1 else None


def is_split_word(value: str) -> bool:
    """Return whether a value is the name of a split, of two words at most, such as private_test."""
    words = re.findall(r"[^\W_]+", value.lower())
    return 0 < len(words) <= 2 and any(word in names for word in words for names in SPLIT_WORDS)
