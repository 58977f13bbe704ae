package downrange.driver;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The arguments of a request. A missing argument without a default is an error. */
final class Args {
    private final JSONObject values;

    Args(JSONObject values) {
        this.values = values;
    }

    boolean has(String name) {
        return values.get(name) != null;
    }

    Object value(String name) {
        Object value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException("argument missing: " + name);
        }
        return value;
    }

    String text(String name) {
        return value(name).toString();
    }

    String text(String name, String otherwise) {
        return has(name) ? text(name) : otherwise;
    }

    long number(String name) {
        return Long.parseLong(value(name).toString());
    }

    long number(String name, long otherwise) {
        return has(name) ? number(name) : otherwise;
    }

    int integer(String name) {
        return Math.toIntExact(number(name));
    }

    int integer(String name, int otherwise) {
        return has(name) ? integer(name) : otherwise;
    }

    boolean flag(String name, boolean otherwise) {
        return has(name) ? Boolean.parseBoolean(text(name)) : otherwise;
    }

    /** Bytes given as base64; null when missing. */
    byte[] bytes(String name) {
        return has(name) ? java.util.Base64.getDecoder().decode(text(name)) : null;
    }

    /** Bytes given as hexadecimal digits. */
    byte[] hex(String name) {
        return Values.bytes(text(name));
    }

    List<Object> list(String name) {
        return has(name) ? new ArrayList<>((JSONArray) value(name)) : new ArrayList<>();
    }

    List<Args> objects(String name) {
        List<Args> objects = new ArrayList<>();
        for (Object value : list(name)) {
            objects.add(new Args((JSONObject) value));
        }
        return objects;
    }

    Args object(String name) {
        return new Args(has(name) ? (JSONObject) value(name) : new JSONObject());
    }

    Map<String, Object> map(String name) {
        return has(name) ? new LinkedHashMap<>((JSONObject) value(name)) : new LinkedHashMap<>();
    }

    /** A map of strings in the order of the request. */
    LinkedHashMap<String, String> texts(String name) {
        LinkedHashMap<String, String> texts = new LinkedHashMap<>();
        map(name).forEach((key, value) -> texts.put(key, value == null ? null : value.toString()));
        return texts;
    }
}
