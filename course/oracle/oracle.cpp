// The reference values of cardkge in plain C++17, written from docs/ORACLE.md alone. No libraries.
//
//     g++ -O2 -std=c++17 -o oracle oracle.cpp && ./oracle oracle.json mine.json
//
// Reads the inputs of every case, never its outputs, computes the outputs and writes them. Everything is a plain loop
// over float64. Three parts: numbers in and out (JSON); the formulas; one function for each kind of case.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using std::size_t;
using std::string;
using std::vector;
using Row = vector<double>;
using Table = vector<Row>;

// ---------------------------------------------------------------------------------------------------------------------
// JSON
// ---------------------------------------------------------------------------------------------------------------------

struct Json {
    enum Kind { Null, Bool, Number, Text, List, Object } kind = Null;
    double number = 0;  // also 0 or 1 of a Bool
    string text;
    vector<Json> list;
    vector<std::pair<string, Json>> object;

    Json() = default;
    Json(double value) : kind(Number), number(value) {}
    Json(const Row& row) : kind(List), list(row.begin(), row.end()) {}
    Json(const Table& table) : kind(List), list(table.begin(), table.end()) {}

    const Json& at(const string& key) const {
        for (const auto& [name, value] : object)
            if (name == key) return value;
        throw std::runtime_error("no \"" + key + "\" in an object of the file");
    }
    bool has(const string& key) const {
        return std::any_of(object.begin(), object.end(), [&](const auto& part) { return part.first == key; });
    }
};

class Reader {
    const string& text;
    size_t place = 0;

    [[noreturn]] void fail(const string& what) const {
        throw std::runtime_error("not JSON: " + what + " at byte " + std::to_string(place));
    }
    char peek() {
        while (place < text.size() && string(" \t\r\n").find(text[place]) != string::npos) place++;
        if (place == text.size()) fail("it ends too early");
        return text[place];
    }
    void expect(char wanted) {
        if (peek() != wanted) fail(string("no ") + wanted);
        place++;
    }
    bool word(const string& wanted) {
        if (text.compare(place, wanted.size(), wanted) != 0) return false;
        place += wanted.size();
        return true;
    }
    // \uXXXX, or two of them for a character beyond U+FFFF, as UTF-8
    string escaped_character() {
        auto unit = [&] {
            if (place + 4 > text.size()) fail("a short \\u");
            unsigned value = std::strtoul(text.substr(place, 4).c_str(), nullptr, 16);
            place += 4;
            return value;
        };
        unsigned code = unit();
        if (code >= 0xd800 && code < 0xdc00 && word("\\u"))
            code = 0x10000 + ((code - 0xd800) << 10) + (unit() - 0xdc00);
        if (code < 0x80) return {char(code)};
        if (code < 0x800) return {char(0xc0 | code >> 6), char(0x80 | (code & 63))};
        if (code < 0x10000) return {char(0xe0 | code >> 12), char(0x80 | (code >> 6 & 63)), char(0x80 | (code & 63))};
        return {char(0xf0 | code >> 18), char(0x80 | (code >> 12 & 63)), char(0x80 | (code >> 6 & 63)),
                char(0x80 | (code & 63))};
    }
    string quoted() {
        expect('"');
        string found;
        while (true) {
            if (place == text.size()) fail("a text without its end");
            char c = text[place++];
            if (c == '"') return found;
            if (c != '\\') {
                found += c;
                continue;
            }
            if (place == text.size()) fail("a text without its end");
            c = text[place++];
            const string letters = "nrtbf", meanings = "\n\r\t\b\f";
            if (c == 'u') found += escaped_character();
            else if (letters.find(c) != string::npos) found += meanings[letters.find(c)];
            else found += c;
        }
    }

  public:
    explicit Reader(const string& content) : text(content) {}

    Json value() {
        Json found;
        char c = peek();
        if (c == '{') {
            found.kind = Json::Object;
            place++;
            while (peek() != '}') {
                if (!found.object.empty()) expect(',');
                peek();
                string name = quoted();
                expect(':');
                found.object.emplace_back(name, value());
            }
            place++;
        } else if (c == '[') {
            found.kind = Json::List;
            place++;
            while (peek() != ']') {
                if (!found.list.empty()) expect(',');
                found.list.push_back(value());
            }
            place++;
        } else if (c == '"') {
            found.kind = Json::Text;
            found.text = quoted();
        } else if (word("null")) {
        } else if (word("true")) {
            found.kind = Json::Bool;
            found.number = 1;
        } else if (word("false")) {
            found.kind = Json::Bool;
        } else {
            const char* start = text.c_str() + place;
            char* end;
            found = Json(std::strtod(start, &end));
            if (end == start) fail("no value");
            place += end - start;
        }
        return found;
    }
};

void write(const Json& value, string& out) {
    const char* between = "";
    char number[40];
    switch (value.kind) {
        case Json::Number:  // JSON has no infinity: an upper bound that is none is null
            if (std::isinf(value.number)) out += "null";
            else std::snprintf(number, sizeof number, "%.17g", value.number), out += number;
            break;
        case Json::List:
            out += '[';
            for (const Json& part : value.list) out += between, write(part, out), between = ", ";
            out += ']';
            break;
        case Json::Object:
            out += '{';
            for (const auto& [name, part] : value.object)
                out += between + ('"' + name + "\": "), write(part, out), between = ", ";
            out += '}';
            break;
        case Json::Text:  // the names of cases and formats: nothing in them needs an escape
            out += '"' + value.text + '"';
            break;
        default:
            out += "null";
    }
}

Row row_of(const Json& value) {
    Row found;
    for (const Json& part : value.list) found.push_back(part.kind == Json::Null ? INFINITY : part.number);
    return found;
}

Table table_of(const Json& value) {
    Table found;
    for (const Json& part : value.list) found.push_back(row_of(part));
    return found;
}

vector<int> ids_of(const Json& value) {  // also of (n, 1+m) ids, row by row
    vector<int> found;
    for (const Json& part : value.list) {
        if (part.kind == Json::List) {
            vector<int> inner = ids_of(part);
            found.insert(found.end(), inner.begin(), inner.end());
        } else {
            found.push_back(int(part.number));
        }
    }
    return found;
}

// ---------------------------------------------------------------------------------------------------------------------
// The formulas
// ---------------------------------------------------------------------------------------------------------------------

using Arrays = std::map<string, Table>;  // parameters, gradients or accumulators by name; a vector is one row

// The (k') array, one row here, goes back as a flat list.
Json json_of(const string& name, const Table& array) { return name == "output" ? Json(array[0]) : Json(array); }

Arrays arrays_of(const Json& value) {
    Arrays found;
    for (const auto& [name, array] : value.object)
        found[name] = name == "output" ? Table{row_of(array)} : table_of(array);
    return found;
}

Arrays zeros_like(const Arrays& arrays) {
    Arrays found = arrays;
    for (auto& [name, array] : found)
        for (Row& row : array) std::fill(row.begin(), row.end(), 0.0);
    return found;
}

double sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }

// log(1 + exp(x)) without overflow
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

struct Model {
    string name;
    Arrays params;
    bool reciprocal;  // 2R relation rows: heads of r are asked for as tails of r + R

    explicit Model(const Json& inputs)
        : name(inputs.at("model").text), params(arrays_of(inputs.at("parameters"))),
          reciprocal(inputs.has("reciprocal") && inputs.at("reciprocal").number != 0) {}

    const Row& entity(int id) const { return params.at("entity").at(id); }
    const Row& relation(int id) const { return params.at("relation").at(id); }
    int n_entities() const { return int(params.at("entity").size()); }
    int n_relations() const { return int(params.at("relation").size()) / (reciprocal ? 2 : 1); }

    // tanh(W' [h; t; r]), a number for each hidden unit
    Row hidden_units(const Row& h, const Row& r, const Row& t) const {
        const Table& w = params.at("hidden");
        size_t k = h.size();
        Row units(params.at("output")[0].size(), 0.0);
        for (size_t j = 0; j < units.size(); j++) {
            for (size_t i = 0; i < k; i++) units[j] += w[i][j] * h[i] + w[k + i][j] * t[i] + w[2 * k + i][j] * r[i];
            units[j] = std::tanh(units[j]);
        }
        return units;
    }

    double score(int head, int rel, int tail) const {
        const Row &h = entity(head), &r = relation(rel), &t = entity(tail);
        double sum = 0;
        if (name == "distmult") {
            for (size_t i = 0; i < h.size(); i++) sum += h[i] * r[i] * t[i];
        } else if (name == "complex") {  // Re((a + ib)(c + id)(e - if)) = (ac - bd) e + (ad + bc) f
            size_t k = h.size() / 2;
            for (size_t i = 0; i < k; i++) {
                double a = h[i], b = h[k + i], c = r[i], d = r[k + i], e = t[i], f = t[k + i];
                sum += (a * c - b * d) * e + (a * d + b * c) * f;
            }
        } else if (name == "ermlp") {
            Row z = hidden_units(h, r, t);
            for (size_t j = 0; j < z.size(); j++) sum += params.at("output")[0][j] * z[j];
        } else {
            throw std::runtime_error("unknown model " + name);
        }
        return sum;
    }

    // phi as it is asked for with the head open
    double score_of_head(int head, int rel, int tail) const {
        return reciprocal ? score(tail, rel + n_relations(), head) : score(head, rel, tail);
    }

    // gradients += u * d score(head, rel, tail) / d parameters
    void add_gradient(int head, int rel, int tail, double u, Arrays& gradients) const {
        const Row &h = entity(head), &r = relation(rel), &t = entity(tail);
        Row &dh = gradients["entity"][head], &dr = gradients["relation"][rel], &dt = gradients["entity"][tail];
        if (name == "distmult") {
            for (size_t i = 0; i < h.size(); i++) {
                dh[i] += u * r[i] * t[i];
                dr[i] += u * h[i] * t[i];
                dt[i] += u * h[i] * r[i];
            }
        } else if (name == "complex") {
            size_t k = h.size() / 2;
            for (size_t i = 0; i < k; i++) {
                double a = h[i], b = h[k + i], c = r[i], d = r[k + i], e = t[i], f = t[k + i];
                dh[i] += u * (c * e + d * f);
                dh[k + i] += u * (c * f - d * e);
                dr[i] += u * (a * e + b * f);
                dr[k + i] += u * (a * f - b * e);
                dt[i] += u * (a * c - b * d);
                dt[k + i] += u * (a * d + b * c);
            }
        } else {
            const Table& w = params.at("hidden");
            const Row& output = params.at("output")[0];
            Table& dw = gradients["hidden"];
            Row z = hidden_units(h, r, t);
            size_t k = h.size();
            for (size_t j = 0; j < z.size(); j++) {
                gradients["output"][0][j] += u * z[j];
                double d = u * output[j] * (1 - z[j] * z[j]);
                for (size_t i = 0; i < k; i++) {
                    dw[i][j] += d * h[i];
                    dw[k + i][j] += d * t[i];
                    dw[2 * k + i][j] += d * r[i];
                    dh[i] += d * w[i][j];
                    dt[i] += d * w[k + i][j];
                    dr[i] += d * w[2 * k + i][j];
                }
            }
        }
    }
};

// The labels of a loss are +-1; returns the loss, and its slope in d_score.
double logistic(double score, double label, double& d_score) {
    d_score = -label * sigmoid(-label * score);
    return softplus(-label * score);
}

// A positive with its own negatives. The slopes are set; 0 where a pair is at the kink.
double hinge(double positive, const Row& negative, double margin, double& d_positive, Row& d_negative) {
    double loss = 0, p = sigmoid(positive);
    d_positive = 0;
    d_negative.assign(negative.size(), 0.0);
    for (size_t i = 0; i < negative.size(); i++) {
        double q = sigmoid(negative[i]), excess = margin + q - p;
        if (excess <= 0) continue;
        loss += excess;
        d_positive -= p * (1 - p);
        d_negative[i] = q * (1 - q);
    }
    return loss;
}

// G of one subject, whose X is set; adds lambda times its gradient.
double violation(const Model& model, int h, int r, const vector<int>& objects, const Row& weights, const Row& bound,
                 double lambda, Arrays& gradients, double& x) {
    Row p;
    x = 0;
    for (size_t j = 0; j < objects.size(); j++) {
        p.push_back(sigmoid(model.score(h, r, objects[j])));
        x += weights[j] * p[j];
    }
    double slope = (x > bound[1]) - (x < bound[0]);
    for (size_t j = 0; j < objects.size(); j++)
        model.add_gradient(h, r, objects[j], lambda * slope * weights[j] * p[j] * (1 - p[j]), gradients);
    return std::max(0.0, bound[0] - x) + std::max(0.0, x - bound[1]);
}

// X and G of each subject; returns the sum of G and adds lambda times its gradient.
double cardinality(const Model& model, const Json& sample, const Table& bounds, double lambda, Arrays& gradients,
                   Row& sums, Row& violations) {
    int r = int(sample.at("relation").number);
    vector<int> objects = ids_of(sample.at("objects"));
    Row weights = row_of(sample.at("weights"));
    double x, penalty = 0;
    for (int h : ids_of(sample.at("subjects"))) {
        violations.push_back(violation(model, h, r, objects, weights, bounds[r], lambda, gradients, x));
        sums.push_back(x);
        penalty += violations.back();
    }
    return penalty;
}

struct Objective {
    double loss = 0, l2 = 0, n3 = 0, penalty = 0, total = 0;
    Arrays gradients;

    void decay(double weight, const Row& row, Row& gradient) {
        for (size_t i = 0; i < row.size(); i++) {
            l2 += weight / 2 * row[i] * row[i];
            gradient[i] += weight * row[i];
        }
    }
    // |x|^3 of each number of a row, of the k complex numbers of a complex one
    void cube(double weight, const Row& row, Row& gradient, bool complex) {
        size_t k = complex ? row.size() / 2 : row.size();
        for (size_t i = 0; i < k; i++) {
            double modulus = complex ? std::hypot(row[i], row[k + i]) : std::abs(row[i]);
            n3 += weight * modulus * modulus * modulus;
            gradient[i] += 3 * weight * modulus * row[i];
            if (complex) gradient[k + i] += 3 * weight * modulus * row[k + i];
        }
    }
};

Objective objective(const Model& model, const Json& in) {
    Objective found;
    found.gradients = zeros_like(model.params);
    vector<int> heads = ids_of(in.at("heads")), relations = ids_of(in.at("relations")), tails = ids_of(in.at("tails"));
    size_t n = in.at("heads").list.size(), width = heads.size() / n;

    Row upstream(heads.size());
    for (size_t i = 0; i < n; i++) {
        Row scores;
        for (size_t j = i * width; j < (i + 1) * width; j++)
            scores.push_back(model.score(heads[j], relations[j], tails[j]));
        double* d = &upstream[i * width];
        if (in.at("loss").text == "logistic") {
            for (size_t j = 0; j < width; j++) found.loss += logistic(scores[j], j == 0 ? 1 : -1, d[j]);
        } else {
            Row d_negative, negative(scores.begin() + 1, scores.end());
            found.loss += hinge(scores[0], negative, in.at("margin").number, d[0], d_negative);
            std::copy(d_negative.begin(), d_negative.end(), d + 1);
        }
    }
    double l2 = in.at("l2").number;
    for (size_t j = 0; j < heads.size(); j++) {
        model.add_gradient(heads[j], relations[j], tails[j], upstream[j], found.gradients);
        found.decay(l2, model.entity(heads[j]), found.gradients["entity"][heads[j]]);
        found.decay(l2, model.relation(relations[j]), found.gradients["relation"][relations[j]]);
        found.decay(l2, model.entity(tails[j]), found.gradients["entity"][tails[j]]);
    }
    double lambda = in.at("penalty_weight").number;
    Table bounds = table_of(in.at("bounds"));
    for (const Json& sample : in.at("samples").list) {
        Row sums, violations;
        found.penalty += cardinality(model, sample, bounds, lambda, found.gradients, sums, violations);
    }
    found.total = found.loss + found.l2 + lambda * found.penalty;
    return found;
}

// -log softmax(s + c) at the answer; the slopes are set. A log weight of -infinity is no candidate.
double softmax(const Row& s, const Row& log_weights, size_t answer, Row& d_scores) {
    Row shifted;
    for (size_t j = 0; j < s.size(); j++) shifted.push_back(s[j] + log_weights[j]);
    double most = *std::max_element(shifted.begin(), shifted.end()), sum = 0;
    for (double x : shifted) sum += std::exp(x - most);
    double log_sum = most + std::log(sum);
    d_scores.clear();
    for (double x : shifted) d_scores.push_back(std::exp(x - log_sum));
    d_scores[answer] -= 1;
    return log_sum - shifted[answer];
}

Objective softmax_objective(const Model& model, const Json& in) {
    Objective found;
    found.gradients = zeros_like(model.params);
    vector<int> sides = ids_of(in.at("sides")), candidates = ids_of(in.at("candidates"));
    Row loopless = row_of(in.at("loopless")), log_weights = row_of(in.at("log_weights")), weights;
    for (double c : log_weights) weights.push_back(std::exp(c));
    Table bounds = table_of(in.at("bounds"));
    double l2 = in.at("l2").number, n3 = in.at("n3").number, lambda = in.at("penalty_weight").number;
    std::set<std::pair<int, int>> bounded;  // (h, r) of the queries for tails
    for (size_t j = 0; j < sides.size(); j++) {
        vector<int> triple = ids_of(in.at("triples").list[j]);
        bool tail_open = sides[j] == 1;
        int r = triple[1], given = triple[tail_open ? 0 : 2], answer = triple[tail_open ? 2 : 0];
        int row = model.reciprocal && !tail_open ? r + model.n_relations() : r;
        bool given_first = tail_open || model.reciprocal;  // where the given entity stands in what is scored
        Row s, c = log_weights, d;
        for (size_t i = 0; i < candidates.size(); i++) {
            int e = candidates[i];
            s.push_back(given_first ? model.score(given, row, e) : model.score(e, row, given));
            if (loopless[r] != 0 && e == given && e != answer) c[i] = -INFINITY;
        }
        size_t place = std::find(candidates.begin(), candidates.end(), answer) - candidates.begin();
        if (place == candidates.size()) throw std::runtime_error("an answer that is no candidate");
        found.loss += softmax(s, c, place, d);
        for (size_t i = 0; i < candidates.size(); i++) {
            if (given_first) model.add_gradient(given, row, candidates[i], d[i], found.gradients);
            else model.add_gradient(candidates[i], row, given, d[i], found.gradients);
        }
        bool complex = model.name == "complex";
        for (auto& [name, id] : {std::pair<const char*, int>{"entity", given}, {"relation", row}, {"entity", answer}}) {
            found.decay(l2, model.params.at(name)[id], found.gradients[name][id]);
            found.cube(n3, model.params.at(name)[id], found.gradients[name][id], complex);
        }
        if (tail_open && (bounds[r][0] > 0 || bounds[r][1] < INFINITY)) bounded.insert({given, r});
    }
    double x;
    for (const auto& [h, r] : bounded)
        found.penalty += violation(model, h, r, candidates, weights, bounds[r], lambda, found.gradients, x);
    found.total = found.loss + found.l2 + found.n3 + lambda * found.penalty;
    return found;
}

// One number by SGD, or by AdaGrad without eps: nothing moves where the accumulator stays 0.
void update(bool adagrad, double rate, double& parameter, double& accumulator, double gradient) {
    if (!adagrad) {
        parameter -= rate * gradient;
        return;
    }
    accumulator += gradient * gradient;
    if (accumulator > 0) parameter -= rate * gradient / std::sqrt(accumulator);
}

void project(Row& row) {
    double square = 0;
    for (double x : row) square += x * x;
    for (double& x : row)
        if (square > 0) x /= std::sqrt(square);
}

// min(1, z frequency) that adds up to total: entities whose share is above 1 are capped until none is.
Row capped(const Row& frequency, double total) {
    vector<bool> full(frequency.size(), false);
    while (true) {
        double free = 0, left = total;
        for (size_t i = 0; i < frequency.size(); i++) {
            if (full[i]) left -= 1;
            else free += frequency[i];
        }
        double z = free > 0 ? left / free : 0;
        bool more = false;
        Row found;
        for (size_t i = 0; i < frequency.size(); i++) {
            found.push_back(full[i] ? 1 : z * frequency[i]);
            if (!full[i] && z * frequency[i] > 1) full[i] = more = true;
        }
        if (!more) return found;
    }
}

// log(exp(x) + exp(y))
double log_add(double x, double y) {
    double most = std::max(x, y);
    return std::isinf(most) ? most : most + std::log1p(std::exp(-std::abs(x - y)));
}

// P(t in S) of candidates with these log odds, where a size j of S weighs weights[j], the last weight being that of all
// sizes from there on, and 0 unless lower <= j <= upper. In logarithms: below[i][j] is e_j of the first i candidates,
// above[i][j] the sum of w_{j + l} e_l of those from i on. Sets `contradicted` where no size has a weight.
Row conditioned(const Row& x, double lower, double upper, const Row& weights, bool& contradicted) {
    int n = int(x.size());
    Table below(n + 1, Row(n + 2, -INFINITY)), above = below;
    below[0][0] = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j <= n; j++)
            below[i + 1][j] = log_add(below[i][j], j > 0 ? below[i][j - 1] + x[i] : -INFINITY);
    for (int j = 0; j <= n; j++)
        if (lower <= j && j <= upper) above[n][j] = std::log(weights[std::min(size_t(j), weights.size() - 1)]);
    contradicted = std::all_of(above[n].begin(), above[n].end(), [](double w) { return std::isinf(w); });
    if (contradicted) return Row(n, 0.0);
    for (int i = n - 1; i >= 0; i--)
        for (int j = 0; j <= n; j++) above[i][j] = log_add(above[i + 1][j], above[i + 1][j + 1] + x[i]);
    Row found;
    for (int t = 0; t < n; t++) {
        double sum = -INFINITY;
        for (int j = 0; j <= n; j++) sum = log_add(sum, below[t][j] + above[t + 1][j + 1]);
        found.push_back(std::exp(x[t] + sum - above[0][0]));
    }
    return found;
}

// log Z, of the sum over the sets of `lower` to `upper` candidates with these log odds, the one at `without` left out, of
// the product of their odds. `rest`: the sum of the odds of many improbable ones, j of which count rest^j / j!.
double log_partition(const Row& x, double rest, double lower, double upper, int without = -1) {
    int least = int(std::max(std::ceil(lower), 0.0));
    if (upper < least) return -INFINITY;
    int most = std::isinf(upper) ? std::max(least, int(x.size())) + int(rest + 10 * std::sqrt(rest)) + 30 : int(upper);
    Row sums{0};  // log of the sum over the sets of j
    for (int j = 1; j <= most; j++) sums.push_back(j * std::log(rest) - std::lgamma(j + 1));
    for (int t = 0; t < int(x.size()); t++)
        for (int j = most; j > 0 && t != without; j--) sums[j] = log_add(sums[j], sums[j - 1] + x[t]);
    double total = -INFINITY;
    for (int j = least; j <= most; j++) total = log_add(total, sums[j]);
    return total;
}

// log P(V), that of the facts S within the bounds exactly V gets into valid, each with probability v. Sets its
// derivatives by the log odds and by log rest.
double thinned(const Row& x, double rest, const Row& found, double v, double lower, double upper, Row& d, double& d_rest) {
    Row outside;  // log odds of what is not in V and not in valid
    double size = 0, value = 0;
    for (size_t t = 0; t < x.size(); t++) {
        if (found[t] != 0) size++, value += x[t] + std::log(v);
        else outside.push_back(x[t] + std::log1p(-v));
    }
    double z = log_partition(x, rest, lower, upper);
    double z_left = log_partition(outside, rest * (1 - v), lower - size, upper - size);
    d.clear();
    for (int t = 0, i = 0; t < int(x.size()); t++) {
        d.push_back(-std::exp(x[t] + log_partition(x, rest, lower - 1, upper - 1, t) - z));
        if (found[t] != 0) {
            d[t] += 1;
            continue;
        }
        double others = log_partition(outside, rest * (1 - v), lower - size - 1, upper - size - 1, i);
        d[t] += std::exp(outside[i++] + others - z_left);
    }
    d_rest = rest * (1 - v) * std::exp(log_partition(outside, rest * (1 - v), lower - size - 1, upper - size - 1) - z_left) -
             rest * std::exp(log_partition(x, rest, lower - 1, upper - 1) - z);
    return value + z_left - z;
}

// log o of a candidate below a ceiling, o = c e^x / (1 + (1 - c) e^x), and its derivatives by x and by the logit of c.
double below_ceiling(double x, double logit, double& d_x, double& d_ceiling) {
    double above = x - softplus(logit), log_odds = x - softplus(-logit) - softplus(above);
    d_x = sigmoid(-above);
    d_ceiling = sigmoid(-logit) * (1 + std::exp(log_odds));
    return log_odds;
}

// ---------------------------------------------------------------------------------------------------------------------
// The kinds of cases
// ---------------------------------------------------------------------------------------------------------------------

using Outputs = vector<std::pair<string, Json>>;

void add_gradients(Outputs& out, const Arrays& gradients) {
    for (const auto& [name, array] : gradients) out.emplace_back("d_" + name, json_of(name, array));
}

Outputs scores(const Json& in) {
    Model model(in);
    vector<int> h = ids_of(in.at("heads")), r = ids_of(in.at("relations")), t = ids_of(in.at("tails"));
    Row score, probability;
    Table by_tail(h.size()), by_head(h.size());
    for (size_t j = 0; j < h.size(); j++) {
        score.push_back(model.score(h[j], r[j], t[j]));
        probability.push_back(sigmoid(score[j]));
        for (int e = 0; e < model.n_entities(); e++) {
            by_tail[j].push_back(model.score(h[j], r[j], e));
            by_head[j].push_back(model.score_of_head(e, r[j], t[j]));
        }
    }
    return {{"score", score}, {"score_tails", by_tail}, {"score_heads", by_head}, {"probability", probability}};
}

Outputs score_gradients(const Json& in) {
    Model model(in);
    vector<int> h = ids_of(in.at("heads")), r = ids_of(in.at("relations")), t = ids_of(in.at("tails"));
    Row u = row_of(in.at("upstream"));
    Arrays gradients = zeros_like(model.params);
    for (size_t j = 0; j < h.size(); j++) model.add_gradient(h[j], r[j], t[j], u[j], gradients);
    Outputs out;
    add_gradients(out, gradients);
    return out;
}

Outputs probability(const Json& in) {
    Row found;
    for (double score : row_of(in.at("scores"))) found.push_back(sigmoid(score));
    return {{"probability", found}};
}

Outputs logistic_loss(const Json& in) {
    Row s = row_of(in.at("scores")), y = row_of(in.at("labels")), d(s.size());
    double loss = 0;
    for (size_t j = 0; j < s.size(); j++) loss += logistic(s[j], y[j], d[j]);
    return {{"loss", loss}, {"d_scores", d}};
}

Outputs hinge_loss(const Json& in) {
    Row positive = row_of(in.at("positive")), d_positive(positive.size());
    Table negative = table_of(in.at("negative")), d_negative(negative.size());
    double loss = 0;
    for (size_t j = 0; j < positive.size(); j++)
        loss += hinge(positive[j], negative[j], in.at("margin").number, d_positive[j], d_negative[j]);
    return {{"loss", loss}, {"d_positive", d_positive}, {"d_negative", d_negative}};
}

Outputs cardinality_case(const Json& in) {
    Model model(in);
    Arrays gradients = zeros_like(model.params);
    Row sums, violations;
    double penalty = cardinality(model, in, table_of(in.at("bounds")), 1, gradients, sums, violations);
    Outputs out = {{"X", sums}, {"G", violations}, {"penalty", penalty}};
    add_gradients(out, gradients);
    return out;
}

Outputs objective_case(const Json& in) {
    Objective found = objective(Model(in), in);
    Outputs out = {
        {"objective", found.total}, {"loss", found.loss}, {"l2", found.l2}, {"penalty", found.penalty}};
    add_gradients(out, found.gradients);
    return out;
}

Outputs softmax_loss(const Json& in) {
    Table s = table_of(in.at("scores")), d(s.size());
    vector<int> answers = ids_of(in.at("answers"));
    double loss = 0;
    for (size_t j = 0; j < s.size(); j++) loss += softmax(s[j], row_of(in.at("log_weights")), answers[j], d[j]);
    return {{"loss", loss}, {"d_scores", d}};
}

Outputs softmax_objective_case(const Json& in) {
    Objective found = softmax_objective(Model(in), in);
    Outputs out = {{"objective", found.total},
                   {"loss", found.loss},
                   {"l2", found.l2},
                   {"n3", found.n3},
                   {"penalty", found.penalty}};
    add_gradients(out, found.gradients);
    return out;
}

Outputs step(const Json& in) {
    Model model(in);
    Arrays gradients = objective(model, in).gradients, accumulators = arrays_of(in.at("accumulators"));
    bool adagrad = in.at("optimizer").text == "adagrad";
    if (!adagrad) accumulators = zeros_like(model.params);  // not used
    double rate = in.at("learning_rate").number;
    for (auto& [name, array] : model.params)
        for (size_t i = 0; i < array.size(); i++)
            for (size_t j = 0; j < array[i].size(); j++)
                update(adagrad, rate, array[i][j], accumulators[name][i][j], gradients[name][i][j]);
    if (in.at("project").text == "unit")
        for (Row& row : model.params["entity"]) project(row);
    Outputs out;
    for (const auto& [name, array] : model.params) out.emplace_back(name, json_of(name, array));
    if (adagrad)
        for (const auto& [name, array] : accumulators) out.emplace_back("accumulator_" + name, json_of(name, array));
    return out;
}

Outputs update_case(const Json& in) {
    // an array of any shape: a flat list is taken as one row
    bool flat = in.at("parameter").list.empty() || in.at("parameter").list[0].kind != Json::List;
    auto read = [&](const char* name) { return flat ? Table{row_of(in.at(name))} : table_of(in.at(name)); };
    Table parameter = read("parameter"), accumulator = read("accumulator"), gradient = read("gradient");
    bool adagrad = in.at("optimizer").text == "adagrad";
    for (size_t i = 0; i < parameter.size(); i++)
        for (size_t j = 0; j < parameter[i].size(); j++)
            update(adagrad, in.at("learning_rate").number, parameter[i][j], accumulator[i][j], gradient[i][j]);
    auto shaped = [&](const Table& table) { return flat ? Json(table[0]) : Json(table); };
    Outputs out = {{"parameter", shaped(parameter)}};
    if (adagrad) out.emplace_back("accumulator", shaped(accumulator));
    return out;
}

Outputs projection(const Json& in) {
    Table rows = table_of(in.at("rows"));
    for (Row& row : rows) project(row);
    return {{"rows", rows}};
}

Outputs sampling(const Json& in) {
    size_t n = size_t(in.at("n_entities").number), relations = size_t(in.at("n_relations").number);
    double omega = in.at("objects").number;
    Table frequency(relations, Row(n, 1.0)), q, weight, uniform(relations, Row(n, omega / double(n))), b;
    Row total(relations, double(n));
    for (const Json& triple : in.at("triples").list) {
        vector<int> ids = ids_of(triple);
        frequency[ids[1]][ids[2]] += 1;
        total[ids[1]] += 1;
    }
    for (size_t r = 0; r < relations; r++) {
        q.emplace_back();
        weight.emplace_back();
        for (double f : frequency[r]) {
            q[r].push_back(f / total[r]);
            weight[r].push_back(1 / (omega * q[r].back()));
        }
        b.push_back(capped(frequency[r], omega));
    }
    return {{"importance_q", q}, {"importance_weight", weight}, {"bernoulli_uniform_b", uniform},
            {"bernoulli_frequency_b", b}};
}

Outputs mined_bounds(const Json& in) {
    int n = int(in.at("n_entities").number), relations = int(in.at("n_relations").number);
    vector<std::map<int, std::set<int>>> tails(relations);  // by relation and head
    std::set<int> subjects;
    for (const Json& triple : in.at("triples").list) {
        vector<int> ids = ids_of(triple);
        tails[ids[1]][ids[0]].insert(ids[2]);
        subjects.insert(ids[0]);
    }
    const string& population = in.at("population").text;
    Table bounds;
    for (const auto& of_relation : tails) {
        if (of_relation.empty()) {
            bounds.push_back({0, INFINITY});
            continue;
        }
        size_t least = SIZE_MAX, most = 0;
        for (const auto& [head, found] : of_relation) {
            least = std::min(least, found.size());
            most = std::max(most, found.size());
        }
        size_t members = population == "subjects"   ? subjects.size()
                         : population == "entities" ? size_t(n)
                                                    : of_relation.size();
        bounds.push_back({of_relation.size() < members ? 0.0 : double(least), double(most)});
    }
    return {{"bounds", bounds}};
}

Outputs ranks(const Json& in) {
    Model model(in);
    std::set<vector<int>> known;
    for (const char* split : {"train", "valid", "test"})
        for (const Json& triple : in.at(split).list) known.insert(ids_of(triple));
    std::map<string, Table> found;
    for (const Json& line : in.at("test").list) {
        vector<int> triple = ids_of(line);
        for (const string name : {"raw", "filtered"}) {
            double b[2] = {0, 0}, e[2] = {0, 0};  // better and equal competitors of the head and of the tail
            for (int side : {0, 1}) {
                auto score_of = [&](const vector<int>& x) {
                    return side == 0 ? model.score_of_head(x[0], x[1], x[2]) : model.score(x[0], x[1], x[2]);
                };
                double own = score_of(triple);
                for (int other = 0; other < model.n_entities(); other++) {
                    vector<int> rival = triple;
                    rival[side == 0 ? 0 : 2] = other;
                    if (rival == triple || (name == "filtered" && known.count(rival))) continue;
                    double score = score_of(rival);
                    b[side] += score > own;
                    e[side] += score == own;
                }
            }
            found[name + "_realistic"].push_back({1 + b[0] + e[0] / 2, 1 + b[1] + e[1] / 2});
            found[name + "_optimistic"].push_back({1 + b[0], 1 + b[1]});
            found[name + "_pessimistic"].push_back({1 + b[0] + e[0], 1 + b[1] + e[1]});
        }
    }
    return Outputs(found.begin(), found.end());
}

Outputs metrics(const Json& in) {
    Table table = table_of(in.at("ranks"));
    Outputs out;
    for (const string side : {"both", "head", "tail"}) {
        Row chosen;
        for (const Row& row : table) {
            if (side != "tail") chosen.push_back(row[0]);
            if (side != "head") chosen.push_back(row[1]);
        }
        auto mean = [&](std::function<double(double)> of) {
            double sum = 0;
            for (double rank : chosen) sum += of(rank);
            return sum / double(chosen.size());
        };
        out.emplace_back(side + "_mrr", mean([](double rank) { return 1 / rank; }));
        for (int n : {1, 3, 5, 10})
            out.emplace_back(side + "_hits@" + std::to_string(n), mean([n](double rank) { return double(rank <= n); }));
        out.emplace_back(side + "_mean_rank", mean([](double rank) { return rank; }));
    }
    return out;
}

Outputs calibration(const Json& in) {
    Table scores = table_of(in.at("scores")), logits(scores.size()), pi = logits, log_odds = logits, probability = logits;
    Row known = row_of(in.at("known")), log_sums;
    double share = in.at("share").number;
    for (size_t j = 0; j < scores.size(); j++) {
        Row of = row_of(in.at("coefficients").list[j].list[size_t(std::min(known[j], 2.0))]);  // a, b, c
        double log_sum = -INFINITY;
        for (double s : scores[j]) log_sum = log_add(log_sum, s);
        log_sums.push_back(log_sum);
        for (double s : scores[j]) {
            double z = (of[0] + of[1]) * (s - log_sum) + of[0] * log_sum + of[2];
            logits[j].push_back(z);
            pi[j].push_back(sigmoid(z));
            log_odds[j].push_back(z + std::log1p(-share));
            probability[j].push_back(sigmoid(log_odds[j].back()));
        }
    }
    return {{"log_sum", log_sums}, {"logits", logits}, {"pi", pi}, {"log_odds", log_odds}, {"probability", probability}};
}

Outputs calibration_loss(const Json& in) {
    Row parameters = row_of(in.at("parameters")), found = row_of(in.at("found")), weights = row_of(in.at("weights"));
    Row centre = row_of(in.at("centre")), precision = row_of(in.at("precision")), gradient(3, 0.0);
    Table features = table_of(in.at("features")), information(3, Row(3, 0.0));
    double share = in.at("share").number, scale = std::exp(parameters[0]), loss = 0;
    for (size_t j = 0; j < features.size(); j++) {
        Row g = features[j];
        g[0] *= scale;  // exp(u), whose derivative it is
        double z = g[0] + parameters[1] * g[1] + parameters[2] * g[2];
        double p = sigmoid(z), left = sigmoid(-z), q = share * p, w = weights[j];
        if (found[j] != 0) loss -= w * (std::log(share) - softplus(-z));
        else loss -= w * std::log1p(-q);
        double d_z = found[j] != 0 ? -w * left : w * q * left / (1 - q);
        for (int i = 0; i < 3; i++) {
            gradient[i] += d_z * g[i];
            for (int k = 0; k < 3; k++) information[i][k] += w * q * left * left / (1 - q) * g[i] * g[k];
        }
    }
    for (int i = 0; i < 3; i++) {
        double away = parameters[i] - centre[i];
        loss += precision[i] * away * away / 2;
        gradient[i] += precision[i] * away;
        information[i][i] += precision[i];
    }
    return {{"loss", loss}, {"d_parameters", gradient}, {"information", information}};
}

Outputs conditional(const Json& in) {
    Row log_odds = row_of(in.at("log_odds")), bounds = row_of(in.at("bounds"));
    Row weights = in.has("weights") ? row_of(in.at("weights")) : Row{1.0};
    double known = in.at("known").number, expected = known;
    bool contradicted;
    Row probability = conditioned(log_odds, bounds[0] - known, bounds[1] - known, weights, contradicted);
    for (double p : probability) expected += p;
    return {{"contradicted", double(contradicted)}, {"probability", probability}, {"expected", expected}};
}

Outputs thinned_likelihood(const Json& in) {
    Row bounds = row_of(in.at("bounds")), d;
    double d_rest, value = thinned(row_of(in.at("log_odds")), in.at("rest").number, row_of(in.at("found")),
                                   in.at("share").number, bounds[0], bounds[1], d, d_rest);
    return {{"log_probability", value}, {"d_log_odds", d}, {"d_log_rest", d_rest}};
}

double offset_of(const Row& parameters, const Row& features) {
    double sum = 0;
    for (size_t f = 0; f < features.size(); f++) sum += parameters[1 + f] * features[f];
    return sum;
}

Outputs calibrated_log_odds(const Json& in) {
    Row parameters = row_of(in.at("parameters")), x = row_of(in.at("log_softmax"));
    Row log_odds = x, d_x = x, d_ceiling = x;
    double offset = offset_of(parameters, row_of(in.at("features")));
    for (size_t t = 0; t < x.size(); t++)
        log_odds[t] = below_ceiling(std::exp(parameters[0]) * x[t] + offset, parameters.back(), d_x[t], d_ceiling[t]);
    return {{"log_odds", log_odds}, {"d_x", d_x}, {"d_ceiling", d_ceiling}};
}

Outputs calibration_objective(const Json& in) {
    Row parameters = row_of(in.at("parameters")), centre = row_of(in.at("centre"));
    Row precision = row_of(in.at("precision")), gradient;
    double value = 0, slope = std::exp(parameters[0]);
    for (size_t i = 0; i < parameters.size(); i++) {
        double away = parameters[i] - centre[i];
        value += precision[i] * away * away / 2;
        gradient.push_back(precision[i] * away);
    }
    for (const Json& query : in.at("queries").list) {
        Row log_softmax = row_of(query.at("log_softmax")), found = row_of(query.at("found"));
        Row weights = row_of(query.at("weights")), features = row_of(query.at("features"));
        Row bounds = row_of(query.at("bounds")), x, found_apart, d, d_x(found.size()), d_ceiling(found.size()), terms;
        double offset = offset_of(parameters, features), rest = 0, d_rest, weight = query.at("weight").number;
        for (size_t t = 0; t < found.size(); t++) {
            double log_odds = below_ceiling(slope * log_softmax[t] + offset, parameters.back(), d_x[t], d_ceiling[t]) +
                              std::log1p(-query.at("known_share").number);
            terms.push_back(weights[t] * std::exp(log_odds));
            if (weights[t] == 1) x.push_back(log_odds), found_apart.push_back(found[t]);
            else rest += terms[t];
        }
        value -= weight * thinned(x, rest, found_apart, query.at("share").number, bounds[0], bounds[1], d, d_rest);
        for (size_t t = 0, i = 0; t < found.size(); t++) {
            double by_odds = weight * (weights[t] == 1 ? d[i++] : d_rest * terms[t] / rest);
            gradient[0] -= by_odds * d_x[t] * slope * log_softmax[t];
            for (size_t f = 0; f < features.size(); f++) gradient[1 + f] -= by_odds * d_x[t] * features[f];
            gradient.back() -= by_odds * d_ceiling[t];
        }
    }
    return {{"value", value}, {"d_parameters", gradient}};
}

int main(int count, char** arguments) {
    const std::map<string, std::function<Outputs(const Json&)>> kinds = {
        {"scores", scores},           {"score_gradients", score_gradients}, {"probability", probability},
        {"logistic_loss", logistic_loss}, {"hinge_loss", hinge_loss},       {"cardinality", cardinality_case},
        {"objective", objective_case}, {"step", step},                      {"update", update_case},
        {"projection", projection},   {"sampling", sampling},               {"mined_bounds", mined_bounds},
        {"ranks", ranks},             {"metrics", metrics},                 {"softmax_loss", softmax_loss},
        {"softmax_objective", softmax_objective_case}, {"calibration", calibration},
        {"calibration_loss", calibration_loss}, {"conditional", conditional},
        {"thinned_likelihood", thinned_likelihood}, {"calibrated_log_odds", calibrated_log_odds},
        {"calibration_objective", calibration_objective}};
    if (count != 3) {
        std::cerr << "usage: oracle INPUT.json OUTPUT.json\n";
        return 2;
    }
    try {
        std::ifstream input(arguments[1], std::ios::binary);
        if (!input) throw std::runtime_error(string(arguments[1]) + ": cannot be read");
        string text((std::istreambuf_iterator<char>(input)), std::istreambuf_iterator<char>());
        Json content = Reader(text).value();

        string out = "{\"format\": \"cardkge-oracle\", \"version\": ";
        write(content.at("version"), out);
        out += ", \"cases\": [";
        const char* between = "\n";
        int computed = 0, skipped = 0;
        for (const Json& item : content.at("cases").list) {
            auto kind = kinds.find(item.at("kind").text);
            if (kind == kinds.end()) {  // of a later version
                skipped++;
                continue;
            }
            Json outputs, name;
            outputs.kind = Json::Object;
            outputs.object = kind->second(item.at("inputs"));
            out += between + ("{\"name\": \"" + item.at("name").text + "\", \"outputs\": ");
            write(outputs, out);
            out += "}";
            between = ",\n";
            computed++;
        }
        out += "\n]}\n";
        std::ofstream output(arguments[2], std::ios::binary);
        output << out;
        output.close();
        if (!output) throw std::runtime_error(string(arguments[2]) + ": cannot be written");
        std::cout << computed << " cases computed, " << skipped << " of unknown kinds\n";
    } catch (const std::exception& error) {
        std::cerr << "error: " << error.what() << "\n";
        return 1;
    }
}
